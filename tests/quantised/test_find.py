"""Quantised weights are found by form and configuration, and what is wrong with their scales too."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch

from intarsia.dtypes import BY_TORCH
from intarsia.planning.manifest import Logical
from intarsia.quantised import QuantisedWeights, find_quantised
from intarsia.quantised.scheme import scheme_of
from tests.quantised.models import llama
from tests.quantised.schemes import BLOCK, SCHEMES, compressed, fp8_of, linears

Headers = dict[str, Logical]


def headers(tensors: dict[str, torch.Tensor]) -> Headers:
    return {
        n: Logical(n, tuple(t.shape), BY_TORCH[str(t.dtype).removeprefix("torch.")])
        for n, t in tensors.items()
    }


def made(scheme: str) -> tuple[Headers, dict[str, Any]]:
    make, said = SCHEMES[scheme]
    return headers(make(llama()[0])), {"quantization_config": said}


def kinds(found: QuantisedWeights) -> list[tuple[str, str]]:
    return [(fault.kind, fault.tensors[0]) for fault in found.faults]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_projection_is_one_weight_with_all_its_parts(scheme: str) -> None:
    tensors, config = made(scheme)
    found = find_quantised(tensors, config)
    plain = llama()[0]
    assert sorted(w.of for w in found.weights) == sorted(linears(plain))
    assert not found.faults
    assert {*found.by_part} == {n for n in tensors if n not in plain or n in linears(plain)}


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s != "aqlm"])
def test_the_same_is_found_without_a_configuration(scheme: str) -> None:
    tensors, config = made(scheme)
    declared, undeclared = find_quantised(tensors, config), find_quantised(tensors, None)
    assert not undeclared.faults
    assert declared.by_part.keys() == undeclared.by_part.keys()


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s != "aqlm"])
def test_each_part_that_a_scheme_needs_is_missed(scheme: str) -> None:
    tensors, config = made(scheme)
    stem = "model.layers.1.mlp.up_proj."
    optional = ("g_idx", "weight_format", "input_scale")
    parts = [p for p in find_quantised(tensors, config).by_part if p.startswith(stem)]
    for part in (p for p in parts if not p.endswith(optional)):
        lost = find_quantised({n: x for n, x in tensors.items() if n != part}, config)
        main = next(w.main.name for w in find_quantised(tensors, config).weights if w.of == f"{stem}weight")  # fmt: skip
        if part == main:
            assert {kind for kind, _ in kinds(lost)} <= {"scale-orphaned"}
            assert lost.faults or scheme == "torchao"
        else:
            assert kinds(lost) == [("scale-missing", main)], part


def test_a_part_that_one_layer_has_and_another_not_may_be_meant() -> None:
    tensors, config = made("quanto 4 bits")
    halved = {n: x for n, x in tensors.items() if not n.endswith("_shift") or "layers.0." in n}
    assert not find_quantised(halved, config).faults


def test_what_is_missing_is_called_as_its_scheme_calls_it() -> None:
    tensors, config = made("int8")
    bare = {n: x for n, x in tensors.items() if n != "model.layers.1.mlp.up_proj.SCB"}
    (fault,) = find_quantised(bare, config).faults
    assert fault.text.endswith("lacks its SCB")
    name = "model.layers.1.mlp.up_proj.weight_scale_inv"
    tensors, _ = made("fp8 blocks")
    said = {"quantization_config": {"quant_method": "fp8", "weight_block_size": None}}
    texts = {fault.tensors[0]: fault.text for fault in find_quantised(tensors, said).faults}
    assert texts[name].endswith("needs [] or [1] or [1, 1] or [96] or [96, 1]")


@pytest.mark.parametrize("scheme", ["fp8 blocks", "fp8 rows", "int4", "awq", "gptq", "nvfp4"])
def test_a_scale_of_another_shape_is_misshaped(scheme: str) -> None:
    tensors, config = made(scheme)
    scales = [n for n in tensors if n.endswith(("_scale", "_scale_inv", "scales"))]
    name = next(n for n in scales if "layers.0.mlp.down_proj" in n and len(tensors[n].shape) == 2)
    rows, columns = tensors[name].shape
    for shape in ((rows + 1, columns), (rows, columns + 1), (rows * columns + 1,)):
        found = find_quantised(tensors | {name: replace(tensors[name], shape=shape)}, config)
        assert kinds(found) == [("scale-misshaped", name)], shape
        assert str(list(shape)) in found.faults[0].text


def test_the_last_word_of_gptq_need_not_be_full_and_words_may_be_of_any_width() -> None:
    def parts(n_in: int, n_out: int, bits: int, word: torch.dtype) -> Headers:
        """As GPTQModel registers its buffers, in groups of 16."""
        per, groups = word.itemsize * 8 // bits, -(-n_in // 16)
        return headers({
            "a.b.qweight": torch.zeros(-(-n_in // per), n_out, dtype=word),
            "a.b.qzeros": torch.zeros(groups, -(-n_out // per), dtype=word),
            "a.b.scales": torch.zeros(groups, n_out, dtype=torch.float16),
            "a.b.g_idx": torch.zeros(n_in, dtype=torch.int32),
        })  # fmt: skip

    said = {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": True}
    for n_in, n_out in ((60, 100), (64, 96), (33, 8)):
        for word in (torch.int8, torch.int16, torch.int32):
            tensors = parts(n_in, n_out, 4, word)
            assert not find_quantised(tensors, {"quantization_config": said}).faults
    tensors["a.b.g_idx"] = replace(tensors["a.b.g_idx"], shape=(32,))
    (fault,) = find_quantised(tensors, {"quantization_config": said}).faults
    assert fault.text.endswith("`a.b.qweight` [5, 8] needs [40] (or [33] at least)")
    exceptions = {"-:.*mlp.*": {}, "+:.*b": {"bits": 8, "group_size": 32}}
    eight = parts(64, 96, 8, torch.int32)
    assert find_quantised(eight, {"quantization_config": said}).faults
    assert not find_quantised(eight, {"quantization_config": said | {"dynamic": exceptions}}).faults
    exceptions["+:.*b"] = {}
    assert find_quantised(eight, {"quantization_config": said | {"dynamic": exceptions}}).faults


def test_zero_points_of_packed_weights_are_packed_from_row_to_row() -> None:
    said = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}
    config = {"quantization_config": compressed("pack-quantized", **said)}
    for rows, columns in ((96, 64), (91, 60)):
        found = headers({
            "a.weight_packed": torch.zeros(rows, -(-columns // 8), dtype=torch.int32),
            "a.weight_scale": torch.zeros(rows, 2),
            "a.weight_zero_point": torch.zeros(12, 2, dtype=torch.int32),
            "a.weight_shape": torch.zeros(2, dtype=torch.int64),
        })  # fmt: skip
        assert not find_quantised(found, config).faults
        name = "a.weight_zero_point"
        for shape in ((rows, 2), (12, 1), (11, 2)):
            wrong = find_quantised(found | {name: replace(found[name], shape=shape)}, config)
            assert kinds(wrong) == [("scale-misshaped", name)]


def test_scales_of_bitsandbytes_are_one_for_each_row() -> None:
    tensors, config = made("int8")
    name = next(n for n in tensors if n.endswith("down_proj.SCB"))
    (rows,) = tensors[name].shape
    for shape, sound in (((rows,), True), ((rows, 1), True), ((rows // 2,), False), ((), False)):
        found = find_quantised(tensors | {name: replace(tensors[name], shape=shape)}, config)
        assert kinds(found) == ([] if sound else [("scale-misshaped", name)]), shape


def test_a_scale_beside_a_weight_in_full_precision_is_orphaned() -> None:
    tensors, config = made("fp8 blocks")
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = replace(tensors[name], dtype=BY_TORCH["bfloat16"])
    assert kinds(find_quantised(tensors, config)) == [("scale-orphaned", f"{name}_scale_inv")]
    assert kinds(find_quantised(tensors, None)) == [("scale-orphaned", f"{name}_scale_inv")]
    loose = compressed("dense", num_bits=8, type="float", strategy="channel")
    tensors, _ = made("fp8 rows")
    tensors[name] = replace(tensors[name], dtype=BY_TORCH["bfloat16"])
    assert not find_quantised(tensors, {"quantization_config": loose}).faults


def test_ragged_blocks_and_experts_in_one_tensor_are_right() -> None:
    ragged = fp8_of("a.q_proj.weight", torch.randn(300, 200), (128, 128))
    experts = fp8_of("a.experts.gate_up_proj", torch.randn(3, 300, 64), (128, 128), "_scale_inv")
    said = {"quantization_config": BLOCK | {"weight_block_size": [128, 128]}}
    found = find_quantised(headers(ragged | experts), said)
    assert not found.faults
    assert [w.of for w in found.weights] == ["a.q_proj.weight", "a.experts.gate_up_proj"]
    alone = {n: t for n, t in (ragged | experts).items() if "scale" not in n}
    assert [k for k, _ in kinds(find_quantised(headers(alone), said))] == ["scale-missing"] * 2


def test_plain_models_with_scales_of_their_own_are_not_quantised() -> None:
    tensors = {
        "logit_scale": torch.zeros(()),
        "blocks.0.norm.scale": torch.ones(4),
        "blocks.0.norm.weight": torch.ones(4),
        "blocks.0.layer_scale": torch.ones(4),
        "blocks.0.attn.weight_scale": torch.ones(4),
        "blocks.0.attn.weight": torch.ones(4, 4),
        "embeddings.position_ids": torch.arange(9),
        "embeddings.weight": torch.ones(4, 4),
    }
    found = find_quantised(headers(tensors), {"model_type": "x"})
    assert not found
    assert not found.notes


def test_fp8_without_scales_or_configuration_is_taken_as_numbers_and_noted() -> None:
    tensors = {"a.weight": torch.ones(4, 4, dtype=torch.float8_e4m3fn)}
    found = find_quantised(headers(tensors), None)
    assert not found
    assert "read as numbers of that type" in found.notes[0]
    (fault,) = find_quantised(headers(tensors), {"quantization_config": BLOCK}).faults
    assert fault.kind == "scale-missing"


@pytest.mark.parametrize("holder", ["quantization_config", "compression_config", "text_config"])
def test_a_scheme_is_read_wherever_configurations_keep_it(holder: str) -> None:
    config: dict[str, Any] = {holder: BLOCK}
    if holder == "text_config":
        config = {holder: {"quantization_config": BLOCK}}
    assert str(scheme_of(config)) == "fp8 block 8x8"


@pytest.mark.parametrize(
    ("bits", "text"), [(4, "bitsandbytes nf4 4 bits"), (8, "bitsandbytes 8 bits")]
)
def test_eight_bits_of_bitsandbytes_have_no_code_of_four(bits: int, text: str) -> None:
    """Transformers writes the settings of both."""
    said = {f"load_in_{n}bit": n == bits for n in (4, 8)} | {"bnb_4bit_quant_type": "nf4"}
    assert str(scheme_of({"quantization_config": {"quant_method": "bitsandbytes"} | said})) == text


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_groups_of_all_inputs_are_channels(method: str) -> None:
    for size, text in ((-1, "per channel"), (32, "group 32")):
        said = {"quant_method": method, "bits": 4, "group_size": size}
        assert str(scheme_of({"quantization_config": said})) == f"{method} 4 bits {text}"


def test_modelopt_may_keep_it_in_a_file_of_its_own() -> None:
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}  # fmt: skip
    scheme = scheme_of({"model_type": "llama"}, said)
    assert scheme is not None
    assert (scheme.method, scheme.format, scheme.group) == ("modelopt", "nvfp4", 16)


def test_two_declarations_that_differ_declare_nothing() -> None:
    config = {
        "quantization_config": BLOCK,
        "text_config": {"quantization_config": SCHEMES["awq"][1]},
    }
    scheme = scheme_of(config)
    assert scheme is not None
    assert (scheme.method, scheme.bits) == ("fp8 and awq", 0)


@pytest.mark.parametrize("names", permutations(["a.weight", "a.weight_packed", "a.weight_scale"]))
def test_a_packed_weight_goes_before_codes_under_the_plain_name(names: tuple[str, ...]) -> None:
    made = {
        "a.weight": torch.ones(4, 4, dtype=torch.int8),
        "a.weight_packed": torch.ones(4, 4, dtype=torch.int32),
        "a.weight_scale": torch.ones(4, 1),
    }
    (weight,) = find_quantised(headers({name: made[name] for name in names}), None).weights
    assert (weight.main.name, weight.form) == ("a.weight_packed", "packed")


def test_parts_come_in_the_order_in_which_they_are_stored() -> None:
    words = ["_zero_point", "_packed", "_shape", "_scale"]
    for order in permutations(words):
        names = [f"{x}.weight{word}" for x, some in (("a", words), ("b", order)) for word in some]
        stored = {name: torch.ones(4, 4, dtype=torch.int32) for name in names}
        _, weight = find_quantised(headers(stored), None).weights
        assert [part.word for part in weight.others] == [x for x in order if x != "_packed"]


def test_both_kinds_of_fp8_without_scales_are_named() -> None:
    kinds = (torch.float8_e5m2, torch.float8_e4m3fn)
    stored = {f"{k}.weight": torch.ones(2, 2).to(kind) for k, kind in enumerate(kinds)}
    (note,) = find_quantised(headers(stored), None).notes
    assert note.startswith("2 tensors are F8_E4M3 or F8_E5M2 without scales")


@pytest.mark.parametrize("codes", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "int8"])
@pytest.mark.parametrize("name", ["a.codes", "a.weight"])
def test_parts_of_an_unknown_scheme_are_one_weight_in_every_type_of_codes(
    name: str, codes: str
) -> None:
    tensors = {name: torch.zeros(4, 4).to(getattr(torch, codes)), "a.factors": torch.ones(4)}
    found = find_quantised(headers(tensors), {"quantization_config": {"quant_method": "other"}})
    assert [[p.name for p in w.parts] for w in found.weights] == [[name, "a.factors"]]
    assert not any("no configuration says" in note for note in found.notes)

"""A checkpoint is compared with the names that Transformers finds; what is right is never refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

import intarsia
from intarsia.errors import CoverageError, ForeignNamesError
from intarsia.family import table_for
from tests.checkpoints import (
    assert_same,
    llama_config,
    model,
    read_dcp,
    read_hf,
    write_dcp,
    write_hf,
)
from tests.quantised import schemes
from tests.quantised.models import SIZES

LLAMA = llama_config(num_hidden_layers=1)
HELIUM = llama_config(**SIZES, model_type="helium", architectures=["HeliumForCausalLM"])
"""A model without a table, whose names are Llama's."""


def kinds(folder: Path) -> list[str]:
    return [fault.kind for fault in intarsia.verify(folder).faults]


def sound() -> dict[str, torch.Tensor]:
    return {name: x * 0.05 for name, x in model(HELIUM).items()}


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "net.weights.", "base_model.model."])
def test_a_prefix_that_reading_takes_off_is_a_fault_on_disk(tmp_path: Path, prefix: str) -> None:
    tensors = {name: x * 0.05 for name, x in model(LLAMA).items()}
    wrong = write_hf(tmp_path / "wrong", {prefix + n: x for n, x in tensors.items()}, LLAMA)
    assert kinds(wrong) == ["names-foreign"]
    intarsia.convert(wrong, tmp_path / "right", to="hf")
    assert kinds(tmp_path / "right") == []
    assert_same(read_hf(tmp_path / "right"), tensors)


def test_names_of_megatron_are_none_that_transformers_finds(tmp_path: Path) -> None:
    table = table_for(LLAMA)
    assert table is not None
    rows = table.dialects["megatron"].items()
    tensors = {name: torch.randn(row.layout.shape) * 0.05 for name, row in rows}
    src = write_dcp(tmp_path / "dcp", tensors)
    with pytest.raises(ForeignNamesError, match="--dialect hf"):
        intarsia.convert(src, tmp_path / "hf", to="hf", config=LLAMA)
    intarsia.convert(src, tmp_path / "hf", to="hf", config=LLAMA, dialect="hf")
    assert kinds(tmp_path / "hf") == []
    intarsia.convert(src, tmp_path / "out", to="dcp", config=LLAMA)
    assert_same(read_dcp(tmp_path / "out"), tensors)
    assert kinds(write_hf(tmp_path / "named", tensors, LLAMA)) == ["names-foreign"]


def test_names_stay_as_they_are_where_transformers_does_not_look(tmp_path: Path) -> None:
    tensors = {f"net.{name}": x for name, x in sound().items()}
    src = write_hf(tmp_path / "hf", tensors, HELIUM)
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="fsdp=2")
    assert_same(read_dcp(tmp_path / "dcp"), tensors)
    assert intarsia.verify(tmp_path / "dcp")
    with pytest.raises(ForeignNamesError, match="--section net "):
        intarsia.plan(tmp_path / "dcp", to="hf")


@pytest.mark.parametrize("dialect", ["hf", "hf-module"])
def test_a_dialect_makes_no_names_of_others_right(tmp_path: Path, dialect: str) -> None:
    src = write_hf(tmp_path / "hf", {f"net.{n}": x for n, x in sound().items()}, HELIUM)
    with pytest.raises(ForeignNamesError, match="--section net "):
        intarsia.convert(src, tmp_path / "out", to="hf", dialect=dialect)


def test_layers_that_are_not_stored_are_missed_as_with_a_table(tmp_path: Path) -> None:
    some = {n: x for n, x in sound().items() if not n.startswith("model.layers.1.")}
    src = write_hf(tmp_path / "hf", some, HELIUM)
    assert kinds(src) == ["layers-missing"]
    assert not intarsia.plan(src, to="hf").proven
    with pytest.raises(CoverageError, match=r"model\.layers\.1\."):
        intarsia.convert(src, tmp_path / "out", to="hf")
    head = {n: x for n, x in sound().items() if n != "lm_head.weight"} | {
        "score.weight": torch.ones(2, 64)
    }
    other = write_hf(tmp_path / "other", head, HELIUM)
    plan = intarsia.plan(other, to="hf")
    assert plan.proven
    assert any("makes new ones for HeliumForCausalLM: lm_head.weight" in n for n in plan.notes)
    assert any(n.endswith("carried name by name: score.weight") for n in plan.notes)


def test_a_shape_that_the_configuration_does_not_give_is_a_fault_as_with_a_table(
    tmp_path: Path,
) -> None:
    tensors = sound() | {"model.layers.1.mlp.up_proj.weight": torch.randn(24, 64) * 0.05}
    report = intarsia.verify(write_hf(tmp_path / "one", tensors, HELIUM))
    (fault,) = report.faults
    assert (fault.kind, fault.tensors) == ("shape-wrong", ("model.layers.1.mlp.up_proj.weight",))
    assert "[24, 64], config.json gives HeliumForCausalLM [" in fault.text
    fewer = HELIUM | {"vocab_size": HELIUM["vocab_size"] - 3}
    report = intarsia.verify(write_hf(tmp_path / "vocabulary", sound(), fewer))
    assert {f.kind for f in report.faults} == {"vocabulary-padded"}
    unnamed = {k: v for k, v in fewer.items() if k != "architectures"}
    assert intarsia.verify(write_hf(tmp_path / "unnamed", sound(), unnamed)), (
        "it may be another class"
    )


def test_layers_beyond_the_configuration_are_told_as_with_a_table(tmp_path: Path) -> None:
    fewer = HELIUM | {"num_hidden_layers": HELIUM["num_hidden_layers"] - 1}
    (fault,) = intarsia.verify(write_hf(tmp_path / "hf", sound(), fewer)).faults
    last = f"model.layers.{fewer['num_hidden_layers']}."
    assert (fault.kind, {*fault.tensors}) == (
        "config-contradicts", {n for n in sound() if n.startswith(last)}
    )  # fmt: skip
    further = sound() | {f"{last}eh_proj.weight": torch.randn(64, 128) * 0.05}
    assert intarsia.verify(write_hf(tmp_path / "mtp", further, fewer)), "it predicts further tokens"


def test_a_tower_beside_a_text_part_is_compared_with_the_model(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"], "vocab_size": 32,
        "text_config": {
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": 32, "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
        },
        "vision_config": {"depth": 2, "embed_dim": 8, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2, "patch_size": 2},
        "tie_word_embeddings": False,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen2VLForConditionalGeneration(Qwen2VLConfig(**config)).save_pretrained(tmp_path / "sound")
    assert intarsia.verify(tmp_path / "sound")
    tensors = read_hf(tmp_path / "sound")
    config = json.loads((tmp_path / "sound" / "config.json").read_text())
    block = {name: x for name, x in tensors.items() if "visual.blocks.1." in name}
    assert block
    rest = {name: x for name, x in tensors.items() if name not in block}
    (fault,) = intarsia.verify(write_hf(tmp_path / "less", rest, config)).faults
    assert (fault.kind, {*fault.tensors}) == ("layers-missing", {*block})
    name = next(name for name in block if name.endswith("fc1.weight"))
    cut = tensors | {name: tensors[name][:5].clone()}
    (fault,) = intarsia.verify(write_hf(tmp_path / "cut", cut, config)).faults
    assert (fault.kind, fault.tensors) == ("shape-wrong", (name,))
    fewer = config | {"vision_config": config["vision_config"] | {"depth": 1}}
    (fault,) = intarsia.verify(write_hf(tmp_path / "more", tensors, fewer)).faults
    assert (fault.kind, {*fault.tensors}) == ("config-contradicts", {*block})


def test_a_file_that_is_lost_is_one_fault(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", sound(), HELIUM, files=3)
    next(src.glob("*-00002-of-*.safetensors")).unlink()
    assert kinds(src) == ["file-missing"]
    (src / "model.safetensors.index.json").unlink()
    assert kinds(src) == ["file-missing"]


@pytest.mark.parametrize(
    ("quantise", "how"),
    [
        (lambda t: schemes.fp8(t, (8, 8)), {"quant_method": "fp8", "weight_block_size": [8, 8]}),
        (lambda t: schemes.qweights(t, "gptq"), {"quant_method": "gptq", "bits": 4, "group_size": 16}),
        (lambda t: schemes.packed_int4(t), schemes.compressed("pack-quantized", num_bits=4, group_size=32)),
    ],
)  # fmt: skip
def test_quantised_weights_have_the_names_of_the_model(
    tmp_path: Path, quantise: Callable[[Any], dict[str, torch.Tensor]], how: dict[str, Any]
) -> None:
    tensors, config = quantise(sound()), HELIUM | {"quantization_config": how}
    src = write_hf(tmp_path / "hf", tensors, config)
    plan = intarsia.plan(src, to="hf")
    assert plan.proven
    assert not any("not names of" in note for note in plan.notes)
    assert "names-foreign" not in kinds(src)
    wrong = write_hf(tmp_path / "wrong", {f"_orig_mod.{n}": x for n, x in tensors.items()}, config)
    assert "names-foreign" in kinds(wrong)


def test_an_adapter_is_not_compared_with_its_model(tmp_path: Path) -> None:
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    src = tmp_path / "adapter"
    write_hf(src, {f"{name}A.weight": torch.ones(2, 64), f"{name}B.weight": torch.ones(64, 2)})
    (src / "model.safetensors").rename(src / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}
    (src / "adapter_config.json").write_text(json.dumps(config))
    intarsia.convert(src, tmp_path / "dcp", to="dcp")
    assert intarsia.plan(tmp_path / "dcp", to="hf", config=HELIUM).proven
    (src / "config.json").write_text(json.dumps(HELIUM))
    assert intarsia.plan(src, to="hf").proven
    intarsia.convert(src, tmp_path / "both", to="dcp")
    with pytest.raises(ForeignNamesError, match="an adapter"):
        intarsia.plan(tmp_path / "both", to="hf")

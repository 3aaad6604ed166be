"""What `verify`, `diff` and `inspect` say about quantised checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia.errors import FormatError, UsageError
from tests.checkpoints import intarsia as command
from tests.checkpoints import write_hf
from tests.quantised.models import llama, mixtral
from tests.quantised.schemes import BLOCK, SCHEMES, compressed, fp8

Q = "model.layers.1.self_attn.q_proj.weight"
SCALE = f"{Q}_scale_inv"


def quantised() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors, config = llama()
    return fp8(tensors, (8, 8)), config | {"quantization_config": BLOCK}


def faults_of(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    return [(fault.kind, fault.tensors) for fault in intarsia.verify(path).faults]


@pytest.mark.parametrize("family", [True, False])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("scale-nan", float("nan")),
        ("scale-nan", float("inf")),
        ("scale-zero", 0.0),
        ("scale-zero", -0.0),
    ],
)
@pytest.mark.one_in(4)
def test_scales_that_are_no_numbers_or_zero_are_faults(
    tmp_path: Path, kind: str, value: float, family: bool
) -> None:
    tensors, config = quantised()
    tensors[SCALE] = torch.full_like(tensors[SCALE], value)
    config = config if family else config | {"model_type": "x"}
    path = write_hf(tmp_path / "hf", tensors, config)
    assert faults_of(path) == [(kind, (SCALE,))]
    intarsia.convert(path, tmp_path / "dcp", to="dcp", mesh="tp=2")
    assert faults_of(tmp_path / "dcp") == [(kind, (SCALE,))]


@pytest.mark.parametrize(
    ("kind", "value"), [("scale-nan", float("nan")), ("scale-zero", 0.0), ("scale-missing", None)]
)
def test_scales_of_a_scheme_that_is_not_known_are_judged_too(
    tmp_path: Path, kind: str, value: float | None
) -> None:
    tensors, config = llama()
    make, said = SCHEMES["aqlm"]
    found, module = make(tensors), Q.removesuffix(".weight")
    path = write_hf(tmp_path / "sound", found, config | {"quantization_config": said})
    assert intarsia.verify(path)
    scales = found.pop(f"{module}.scales")
    if value is not None:
        found[f"{module}.scales"] = torch.full_like(scales, value)
    path = write_hf(tmp_path / "wrong", found, config | {"quantization_config": said})
    (fault,) = intarsia.verify(path).faults
    assert fault.kind == kind
    assert f"`{module}" in fault.text


def test_codes_of_a_scheme_that_is_not_known_that_one_layer_lost_are_missed(
    tmp_path: Path,
) -> None:
    tensors, config = llama()
    make, said = SCHEMES["aqlm"]
    found, module = make(tensors), Q.removesuffix(".weight")
    found |= {
        n.replace(".codes", ".nbits"): torch.tensor(2, dtype=torch.int32)
        for n in found
        if n.endswith(".codes")
    }
    config |= {"quantization_config": said}
    assert intarsia.verify(write_hf(tmp_path / "sound", found, config))
    path = write_hf(tmp_path / "hf", {n: x for n, x in found.items() if n != f"{module}.codes"}, config)  # fmt: skip
    (fault,) = intarsia.verify(path).faults
    assert fault.kind == "scale-orphaned"
    assert f"`{module}` (aqlm) lacks its codes, which" in fault.text


def test_zero_points_that_are_no_numbers_are_a_fault(tmp_path: Path) -> None:
    tensors, config = llama()
    make, said = SCHEMES["quanto 4 bits"]
    found = make(tensors)
    found[f"{Q}._shift"][3] = float("nan")
    path = write_hf(tmp_path / "hf", found, config | {"quantization_config": said})
    assert faults_of(path) == [("scale-nan", (f"{Q}._shift",))]


def test_a_scale_of_activations_is_said_to_scale_these(tmp_path: Path) -> None:
    tensors, config = quantised()
    for value, end in ((0.0, "all zero"), (float("nan"), "NaN or infinite")):
        scale = {Q.replace("weight", "input_scale"): torch.tensor([value])}
        (fault,) = intarsia.verify(write_hf(tmp_path / end, tensors | scale, config)).faults
        assert f"{end}: so is every activation" in fault.text


def test_one_nan_among_scales_is_found_in_every_element_type(tmp_path: Path) -> None:
    tensors, config = quantised()
    tensors[SCALE].view(-1)[3] = float("nan")
    assert faults_of(write_hf(tmp_path / "f32", tensors, config)) == [("scale-nan", (SCALE,))]
    exponents = torch.full(tensors[SCALE].shape, 120, dtype=torch.uint8)
    exponents[1, 2] = 255
    tensors[SCALE] = exponents.view(torch.float8_e8m0fnu)
    assert faults_of(write_hf(tmp_path / "e8m0", tensors, config)) == [("scale-nan", (SCALE,))]


def test_scales_of_any_element_type_are_zero_only_if_they_are(tmp_path: Path) -> None:
    tensors, config = quantised()
    shape = tensors[SCALE].shape
    for dtype in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e4m3fn, torch.float64):
        for value, told in ((0.5, []), (0.0, [("scale-zero", (SCALE,))])):
            scale = {SCALE: torch.full(shape, value).to(dtype)}
            path = write_hf(tmp_path / f"{dtype}-{value}", tensors | scale, config)
            assert faults_of(path) == told


@pytest.mark.parametrize("family", [True, False])
def test_scales_that_headers_show_to_be_wrong_are_faults_and_refused(
    tmp_path: Path, family: bool
) -> None:
    tensors, config = quantised()
    config = config if family else config | {"model_type": "x"}
    half = tensors[SCALE][:-1].clone()
    cases = {
        "scale-missing": ({n: t for n, t in tensors.items() if n != SCALE}, (Q,)),
        "scale-orphaned": (tensors | {Q: tensors[Q].bfloat16()}, (SCALE,)),
        "scale-misshaped": (tensors | {SCALE: half}, (SCALE, Q)),
    }
    for kind, (wrong, names) in cases.items():
        path = write_hf(tmp_path / kind, wrong, config)
        assert faults_of(path) == [(kind, names)]
        said = command("inspect", path, "--json").json
        assert not said["complete"]
        assert said["problems"]
        for to in ("dcp", "hf", "torch_dist"):
            with pytest.raises(FormatError, match=r"scal|quantised") as error:
                intarsia.convert(path, tmp_path / "out", to=to)
            assert error.value.kind == kind
        into = {n: torch.empty_like(t) for n, t in wrong.items()}
        with pytest.raises(FormatError):
            intarsia.load(path, into=into, strict=False)


def test_scales_that_many_weights_lack_are_one_fault(tmp_path: Path) -> None:
    tensors, config = quantised()
    bare = {n: t for n, t in tensors.items() if not n.endswith("_scale_inv")}
    (fault,) = intarsia.verify(write_hf(tmp_path / "hf", bare, config)).faults
    assert fault.kind == "scale-missing"
    assert len(fault.tensors) == 14
    assert "13 more like it" in fault.text


def test_equal_scales_of_experts_and_layers_are_no_fault(tmp_path: Path) -> None:
    tensors, config = mixtral()
    found = fp8(tensors, (8, 8))
    for name in found:
        if name.endswith("_scale_inv"):
            found[name] = torch.full_like(found[name], 0.125)
    assert not faults_of(write_hf(tmp_path / "hf", found, config | {"quantization_config": BLOCK}))


def test_inspect_says_how_weights_are_quantised(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "hf", *quantised())
    said = command("inspect", path, "--json").json
    assert said["quantised"] == {"scheme": "fp8 block 8x8", "weights": 14}
    assert said["complete"]
    assert "fp8 block 8x8" in command("inspect", path).out
    plain = write_hf(tmp_path / "plain", *llama())
    assert command("inspect", plain, "--json").json["quantised"] is None


@pytest.mark.parametrize(
    ("scheme", "flipped"), [(scheme, bool(k % 2)) for k, scheme in enumerate(SCHEMES)]
)
def test_a_quantised_and_a_plain_checkpoint_are_not_comparable(
    tmp_path: Path, scheme: str, flipped: bool
) -> None:
    tensors, config = llama()
    make, said = SCHEMES[scheme]
    a = write_hf(tmp_path / "a", make(tensors), config | {"quantization_config": said})
    b = write_hf(tmp_path / "b", tensors, config)
    report = intarsia.verify(b, a) if flipped else intarsia.verify(a, b)
    assert not report
    assert not report.different
    assert report.compared == len(tensors) - 14
    (fault,) = report.faults
    assert fault.kind == "quantised-differently"
    assert "14 weights are not comparable" in fault.text
    assert ("B is not quantised" if not flipped else "A is not quantised") in fault.text
    assert (report.only_in_a, report.only_in_b, fault.tensors) == ((), (), report.not_comparable)
    assert len(report.not_comparable) >= 28


def test_two_schemes_are_not_comparable_and_equal_ones_are_compared_by_bits(tmp_path: Path) -> None:
    tensors, config = llama()
    paths = []
    for k, scheme in enumerate(("fp8 blocks", "int4")):
        make, said = SCHEMES[scheme]
        paths.append(write_hf(tmp_path / f"{k}", make(tensors), config | {"quantization_config": said}))  # fmt: skip
    assert "A is quantised (fp8" in intarsia.verify(*paths).faults[0].text
    found, config = quantised()
    found[SCALE][0, 0] *= 2
    report = intarsia.verify(paths[0], write_hf(tmp_path / "c", found, config))
    assert [(x.tensor, x.elements) for x in report.different] == [(SCALE, 1)]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"weight_block_size": [7, 8]}, "block (8, 8) in A, (7, 8) in B: equal codes are other numbers"),
        (None, "fp8 block 8x8 in A, nothing in B: without it, a loader takes codes for numbers"),
        ({"ignored_layers": ["lm_head"]}, ""),
        ({"quant_method": "mxfp8"}, "method fp8 in A, mxfp8 in B: equal codes are other numbers"),
    ],
)  # fmt: skip
def test_equal_codes_that_are_declared_otherwise_are_not_equal(
    tmp_path: Path, said: dict[str, Any] | None, text: str
) -> None:
    tensors, config = quantised()
    declared = {"quantization_config": BLOCK | said} if said else {"quantization_config": {}}
    a = write_hf(tmp_path / "a", tensors, config)
    b = write_hf(tmp_path / "b", tensors, config | declared)
    report = intarsia.verify(a, b)
    assert [x.text for x in report.beside if x.counts] == [text] * bool(text)
    assert bool(report) is not bool(text)
    assert not report.different
    out = command("verify", a, b)
    assert out.status == int(bool(text))
    assert text in out.out
    assert intarsia.convert(a, tmp_path / "dcp", to="dcp")
    (tmp_path / "dcp" / "config.json").unlink()
    assert intarsia.verify(a, tmp_path / "dcp"), (
        "where one side has no configuration, nothing is declared otherwise"
    )


@pytest.mark.parametrize("unsaid", [{}, {"checkpoint_format": "gptq"}])
def test_equal_zero_points_of_the_two_formats_of_gptq_are_other_numbers(
    tmp_path: Path, unsaid: dict[str, Any]
) -> None:
    tensors, config = llama()
    make, said = SCHEMES["gptq"]
    made = make(tensors)
    a, b, same = (
        write_hf(tmp_path / f"{k}", made, config | {"quantization_config": said | more})
        for k, more in enumerate((unsaid, {"checkpoint_format": "gptq_v2"}, {"checkpoint_format": "gptq"}))
    )  # fmt: skip
    report = intarsia.verify(a, b)
    assert not report
    (text,) = [x.text for x in report.beside if x.counts]
    assert text == "format gptq in A, gptq_v2 in B: equal codes are other numbers"
    assert intarsia.verify(a, same), "gptq is what is meant where nothing is said"
    assert intarsia.verify(b)


def test_weights_in_several_ways_are_declared_otherwise_where_one_way_is_another(
    tmp_path: Path,
) -> None:
    def groups(**changes: Any) -> dict[str, Any]:
        said = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
        both = compressed("pack-quantized", **said | changes)
        both["config_groups"]["group_1"] = {"targets": ["x"], "weights": said | {"num_bits": 8}}
        return both

    gptq = SCHEMES["gptq"][1]
    cases = {
        "int4": (groups(), groups(symmetric=False), "group 32 asymmetric; compressed-tensors pack-quantized 8 bits"),
        "gptq": (gptq | {"dynamic": {"+:x": {"bits": 4, "sym": True}, "-:y": {}}}, gptq | {"dynamic": {"+:x": {"bits": 4, "sym": False}}}, "bits 4, sym True in A"),
    }  # fmt: skip
    for scheme, (one, other, text) in cases.items():
        tensors, config = llama()
        made = SCHEMES[scheme][0](tensors)
        a, same, b = (
            write_hf(tmp_path / f"{scheme}{k}", made, config | {"quantization_config": said})
            for k, said in enumerate((one, one | {"ignore": []}, other))
        )
        assert intarsia.verify(a, same)
        report = intarsia.verify(a, b)
        (said,) = [x.text for x in report.beside if x.counts]
        assert text in said
        assert said.endswith("equal codes are other numbers")
        assert not report


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s != "aqlm"])
@pytest.mark.one_in(3)
def test_a_configuration_that_says_nothing_of_quantised_weights_is_a_fault(
    tmp_path: Path, scheme: str
) -> None:
    tensors, config = llama()
    path = write_hf(tmp_path / "hf", SCHEMES[scheme][0](tensors), config)
    (fault,) = intarsia.verify(path).faults
    assert (fault.kind, fault.where) == ("config-contradicts", "config.json")
    assert fault.text.startswith("14 weights are quantised")
    intarsia.convert(path, tmp_path / "dcp", to="dcp")
    (tmp_path / "dcp" / "config.json").unlink()
    assert intarsia.verify(tmp_path / "dcp"), "no configuration contradicts nothing"
    (path / "quantize_config.json").write_text("{}")
    assert intarsia.verify(path), "older tools say it in a file of their own"


def test_diff_needs_numbers_and_is_refused(tmp_path: Path) -> None:
    a, b = write_hf(tmp_path / "a", *quantised()), write_hf(tmp_path / "b", *llama())
    for pair in ((a, b), (b, a), (a, a)):
        with pytest.raises(UsageError, match="is quantised"):
            intarsia.diff(*pair)
    assert command("diff", a, b).status == 2


def copied_layer(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return other


def copied_half(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[: len(x) // 2]] * 2)


def lost_half(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[: len(x) // 2], 0 * x[len(x) // 2 :]])


def never_written(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return 0 * x


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (copied_layer, "tensor-repeated"),
        (copied_half, "shards-repeated"),
        (lost_half, "zero-block"),
        (never_written, "zero-tensor"),
    ],
)
@pytest.mark.parametrize(
    ("scheme", "word"), [("int8", "weight"), ("int4", "weight_packed"), ("gptq", "qweight"), ("awq", "qweight")]
)  # fmt: skip
@pytest.mark.one_in(4)
def test_codes_show_what_numbers_would(
    tmp_path: Path, scheme: str, word: str, damage: Callable[..., torch.Tensor], kind: str
) -> None:
    make, said = SCHEMES[scheme]
    tensors, config = llama(num_hidden_layers=3)
    held = make(tensors)
    at, other = (f"model.layers.{k}.self_attn.q_proj.{word}" for k in (1, 0))
    held[at] = damage(held[at], held[other]).clone()
    path = write_hf(tmp_path, held, config | {"quantization_config": said})
    assert [fault for fault, names in faults_of(path) if at in names] == [kind]

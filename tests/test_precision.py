"""Everything that changes a number is as asked and counted; what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import intarsia
from intarsia import PrecisionError, UsageError
from intarsia.dtypes import BY_NAME
from intarsia.format import registry as formats
from intarsia.format.folder.side_files import with_dtype
from intarsia.format.megatron.common import arguments_of, common_in
from intarsia.format.megatron.fsdp_dtensor.entries import arguments_in
from intarsia.opened.entries import read_entries
from tests.checkpoints import intarsia as command
from tests.checkpoints import llama_config, model, read_hf, write_hf
from tests.live.megatron_fsdp_cases import FIXTURES, hf_with_optimizer

CONFIG = llama_config(num_hidden_layers=1, torch_dtype="float32")
NAME = "model.layers.0.mlp.up_proj.weight"


def folder(path: Path, value: float | None = None, **config: Any) -> Path:
    """A model in fp32, one of its elements being `value`."""
    tensors = model(CONFIG, torch.float32)
    if value is not None:
        tensors[NAME][3, 7] = value
    return write_hf(path, tensors, CONFIG | config)


@pytest.mark.parametrize("to", ["hf", "dcp", "torch_dist", "fsdp_dtensor"])
def test_elements_that_are_rounded_are_counted(to: str, tmp_path: Path) -> None:
    report = intarsia.convert(folder(tmp_path / "a"), tmp_path / "b", to=to, dtype="bf16")
    tensors = model(CONFIG, torch.float32).values()
    lost = sum(int((x.bfloat16().float() != x).sum()) for x in tensors)
    said = report.as_json()
    assert sum(x["rounded"] for x in said["changed"]) == lost
    assert all(x["to"] == "BF16" and not x["underflowed"] for x in said["changed"])
    size = sum(x.numel() for x in tensors)
    assert f"{lost:,} of {size:,} elements" in str(report)


def test_widening_is_not_reported_as_rounding(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "a", model(CONFIG), CONFIG)
    report = intarsia.convert(source, tmp_path / "b", to="hf", dtype="fp32")
    assert not report.changed
    assert "rounded" not in str(report)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("fp16", 70000.0), ("fp16", -1e20), ("f8_e4m3", 500.0), ("f8_e5m2", 1e5), ("bf16", 3.4e38)],
)
def test_a_number_that_does_not_fit_is_refused(dtype: str, value: float, tmp_path: Path) -> None:
    source = folder(tmp_path / "a", value)
    with pytest.raises(PrecisionError) as refused:
        intarsia.convert(source, tmp_path / "b", to="hf", dtype=dtype)
    assert f"`{NAME}`[3, 7] is {torch.tensor(value).item()!r}" in str(refused.value)
    hint = str(refused.value).partition("hint: ")[2]
    assert "fp32" in hint
    assert dtype not in hint
    assert not (tmp_path / "b").exists()
    assert command("convert", source, tmp_path / "b", "--to", "hf", "--dtype", dtype).status == 1


def test_an_infinity_of_the_source_is_kept_where_there_is_one(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", float("inf"))
    intarsia.convert(source, tmp_path / "b", to="hf", dtype="fp16")
    assert read_hf(tmp_path / "b")[NAME][3, 7] == float("inf")
    with pytest.raises(PrecisionError, match=r"\[3, 7\] is inf"):
        intarsia.convert(source, tmp_path / "c", to="hf", dtype="f8_e4m3")


def test_nan_stays_nan_and_zeros_made_of_small_numbers_are_counted(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", float("nan"))
    intarsia.convert(source, tmp_path / "b", to="hf", dtype="fp16")
    assert read_hf(tmp_path / "b")[NAME][3, 7].isnan()
    report = intarsia.convert(folder(tmp_path / "c", 1e-30), tmp_path / "d", to="hf", dtype="fp16")
    assert sum(x.underflowed for x in report.changed) == 1
    assert "1 of them became zero" in str(report)


def test_a_number_inside_a_fused_tensor_is_found_where_it_is_written(tmp_path: Path) -> None:
    tensors = model(CONFIG, torch.float32)
    tensors["model.layers.0.self_attn.k_proj.weight"][7, 2] = 1e6
    source = write_hf(tmp_path / "a", tensors, CONFIG)
    with pytest.raises(PrecisionError, match=r"linear_qkv.weight`\[37, 2\] is 1000000.0"):
        intarsia.convert(source, tmp_path / "b", to="torch_dist", dtype="fp16")


def test_the_configuration_names_the_type_that_was_written(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", dtype="float32", inner={"dtype": "float32"}, note="dtype")
    intarsia.convert(source, tmp_path / "b", to="hf", dtype="bf16")
    before = (source / "config.json").read_text()
    after = (tmp_path / "b" / "config.json").read_text()
    assert after == before.replace('"float32"', '"bfloat16"')
    said = json.loads(after)
    assert said["torch_dtype"] == said["dtype"] == said["inner"]["dtype"] == "bfloat16"
    intarsia.convert(source, tmp_path / "c", to="hf")
    assert (tmp_path / "c" / "config.json").read_text() == before


def test_a_type_that_is_no_float_is_left_alone() -> None:
    text = '{"dtype": "int8", "torch_dtype": null, "compute_dtype": "float32"}'
    assert with_dtype(text, BY_NAME["BF16"]) == text


def test_what_frameworks_keep_in_fp32_stays_so(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.mlp.gate.e_score_correction_bias": torch.rand(4),
        "model.layers.0.mixer.A_log": torch.rand(4),
        "model.layers.0.attn.rotary_emb.inv_freq": torch.rand(4),
        "model.layers.0.attn.weight": torch.rand(4, 4),
    }
    source = write_hf(tmp_path / "a", tensors)
    report = intarsia.convert(source, tmp_path / "b", to="hf", dtype="bf16")
    found = read_hf(tmp_path / "b")
    kept = [n for n, x in found.items() if x.dtype == torch.float32]
    assert sorted(kept) == sorted(n for n in tensors if not n.endswith("attn.weight"))
    assert all(torch.equal(found[n], tensors[n]) for n in kept)
    assert [x.tensor for x in report.changed] == ["model.layers.0.attn.weight"]


@pytest.mark.parametrize("to", ["torch_dist", "fsdp_dtensor"])
def test_parts_of_unlike_types_are_fused_in_the_one_that_is_asked_for(
    to: str, tmp_path: Path
) -> None:
    tensors = model(CONFIG, torch.float32)
    name = "model.layers.0.self_attn.k_proj.weight"
    tensors[name] = tensors[name].bfloat16()
    source = write_hf(tmp_path / "a", tensors, CONFIG)
    with pytest.raises(intarsia.UsageError, match="BF16, F32"):
        intarsia.convert(source, tmp_path / "b", to=to)
    intarsia.convert(source, tmp_path / "b", to=to, dtype="fp32")
    with intarsia.open(tmp_path / "b") as found:
        assert torch.equal(found[name][...], tensors[name].float())


@pytest.mark.parametrize("to", ["torch_dist", "fsdp_dtensor"])
@pytest.mark.one_in(2)
def test_megatrons_arguments_name_the_precision_that_was_written(to: str, tmp_path: Path) -> None:
    source = FIXTURES / "td_dense_tp2"
    config = source / "hf_truth" / "config.json"
    for dtype, said in (("fp16", (False, True)), (None, (True, False)), ("fp32", (False, False))):
        out = tmp_path / f"{dtype}"
        intarsia.convert(source, out, to=to, config=config, dtype=dtype, optimizer="keep")
        args = arguments_in_checkpoint(out)
        assert (args["bf16"], args["fp16"]) == said
        assert args["main_params_dtype"] == "fp32"


def arguments_in_checkpoint(path: Path) -> Any:
    manifest = formats.read_manifest(path)
    entries = read_entries(manifest, 1 << 30)
    if "args" in entries:
        return arguments_in(entries["args"])
    return arguments_of(common_in(entries))


def test_a_cast_that_leaves_main_weights_behind_says_so(tmp_path: Path) -> None:
    source = hf_with_optimizer(tmp_path / "a", model(CONFIG), CONFIG)
    report = intarsia.convert(source, tmp_path / "b", to="hf", dtype="fp16")
    assert "not from their fp32 main weights" in str(report)
    report = intarsia.convert(source, tmp_path / "c", to="hf", dtype="bf16")
    assert "main weights" not in str(report)


def test_weights_are_not_cast_beside_what_they_lack_of_their_main_weights(tmp_path: Path) -> None:
    weights = model(llama_config())
    lacking = {f"optimizer.master_param.{n}": x.view(torch.int16) for n, x in weights.items()}
    write_hf(tmp_path / "hf", weights, llama_config(), 1)
    (tmp_path / "hf" / "optimizer").mkdir()
    save_file(lacking, tmp_path / "hf" / "optimizer" / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match="lacks of its main weight"):
        intarsia.convert(tmp_path / "hf", tmp_path / "out", to="hf", dtype="fp16")
    intarsia.convert(tmp_path / "hf", tmp_path / "same", to="dcp", dtype="bf16")
    intarsia.convert(tmp_path / "hf", tmp_path / "out", to="hf", dtype="fp16", optimizer="drop")


def test_an_element_type_of_torchs_is_the_one_of_its_name(tmp_path: Path) -> None:
    save_file({"a": torch.tensor([1.0, 1.1])}, tmp_path / "model.safetensors")
    given: Any = torch.bfloat16
    intarsia.convert(tmp_path, tmp_path / "out", to="dcp", dtype=given)
    assert intarsia.open(tmp_path / "out")["a"].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [7, ["bf16"], b"bf16", float], ids=repr)
def test_what_names_no_element_type_is_refused(dtype: Any, tmp_path: Path) -> None:
    save_file({"a": torch.tensor([1.0, 1.1])}, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="unknown element type"):
        intarsia.plan(tmp_path, to="dcp", dtype=dtype)

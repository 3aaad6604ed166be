"""Weights and main weights are two values of one fact: they agree, or the user says which is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import intarsia
from intarsia import CoverageError, PrecisionError
from intarsia.dtypes import BY_NAME
from intarsia.opened.masters import unlike
from intarsia.value import PLAIN
from tests.checkpoints import llama_config, model, read_hf
from tests.fixtures import fixture
from tests.live.megatron_fsdp_cases import hf_with_optimizer, logical_tensors, to_fsdp

CONFIG = llama_config(num_hidden_layers=1)
EDITED = "model.layers.0.self_attn.q_proj.weight"


def trained(folder: Path, **changes: torch.Tensor) -> Path:
    """A folder with an optimizer, some of its weights edited after the main weights were saved."""
    weights = model(CONFIG)
    hf_with_optimizer(folder, weights, CONFIG)
    save_file(weights | changes, folder / "model.safetensors", {"format": "pt"})
    return folder


def lose(source: Path, state: str) -> None:
    """Take one tensor out of a folder's state of the optimizer."""
    file = source / "optimizer" / "model.safetensors"
    held = load_file(file)
    del held[state]
    save_file(held, file, {"format": "pt"})


def edited() -> dict[str, torch.Tensor]:
    x = model(CONFIG)[EDITED].clone()
    x[2, 5] += 1
    x[3, 0] += 1
    return {EDITED: x}


def test_weights_edited_beside_older_main_weights_are_refused(tmp_path: Path) -> None:
    source = trained(tmp_path / "hf", **edited())
    with pytest.raises(PrecisionError) as refused:
        to_fsdp(source, tmp_path / "out")
    text = str(refused.value)
    assert "2 elements of 1 weights" in text
    assert f"{EDITED}[2, 5]" in text
    assert "--optimizer drop" in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["hf", "dcp", "torch_dist"])
def test_where_both_are_written_both_are_what_they_were(to: str, tmp_path: Path) -> None:
    source = trained(tmp_path / "hf", **edited())
    intarsia.convert(source, tmp_path / "out", to=to)
    found, truth = logical_tensors(tmp_path / "out"), logical_tensors(source)
    for name in (EDITED, f"optimizer.master.{EDITED}"):
        assert torch.equal(found[name], truth[name])


def test_the_hint_takes_the_weights(tmp_path: Path) -> None:
    source = trained(tmp_path / "hf", **edited())
    with pytest.raises(PrecisionError, match="drop --dtype bfloat16"):
        to_fsdp(source, tmp_path / "out", optimizer="drop")
    to_fsdp(source, tmp_path / "out", optimizer="drop", dtype="bfloat16")
    found = logical_tensors(tmp_path / "out")
    assert found.keys() == model(CONFIG).keys()
    assert torch.equal(found[EDITED], edited()[EDITED])


def test_main_weights_that_round_to_the_weights_are_the_model_section(tmp_path: Path) -> None:
    source = trained(tmp_path / "hf")
    state = load_file(source / "optimizer" / "model.safetensors")
    for optimizer in ("keep", "drop"):
        to_fsdp(source, tmp_path / optimizer, optimizer=optimizer)
        found = logical_tensors(tmp_path / optimizer)
        for name in model(CONFIG):
            assert found[name].dtype == torch.float32
            assert torch.equal(found[name], state[f"optimizer.master.{name}"])
        assert ("optimizer.exp_avg." + EDITED in found) == (optimizer == "keep")


def test_the_training_precision_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    source = trained(tmp_path / "hf")
    to_fsdp(source, tmp_path / "out", dtype="bf16")
    found = logical_tensors(tmp_path / "out")
    for name, x in model(CONFIG).items():
        assert torch.equal(found[name], x)
        assert found[name].dtype == torch.bfloat16
        assert found[f"optimizer.exp_avg.{name}"].dtype == torch.float32


def test_a_nan_in_both_is_no_contradiction(tmp_path: Path) -> None:
    source = trained(tmp_path / "hf")
    for file in (source / "model.safetensors", source / "optimizer" / "model.safetensors"):
        held = load_file(file)
        for name in (EDITED, f"optimizer.master.{EDITED}"):
            if name in held:
                held[name][0, 0] = float("nan")
        save_file(held, file, {"format": "pt"})
    to_fsdp(source, tmp_path / "out")
    assert logical_tensors(tmp_path / "out")[EDITED][0, 0].isnan()


def test_what_lies_halfway_may_be_rounded_away_from_zero_and_no_further() -> None:
    bf16, f32 = BY_NAME["BF16"], BY_NAME["F32"]
    main = np.array([0x3F808000, 0x3F808000, 0xBF808000, 0x3F808001, 0x3F807FFF], "<u4")
    weight = np.array([0x3F80, 0x3F81, 0xBF81, 0x3F80, 0x3F81], "<u2")
    assert [*unlike(weight, bf16, main, f32, PLAIN)] == [False, False, False, True, True]


@pytest.mark.parametrize("to", ["fsdp_dtensor", "torch_dist"])
def test_a_main_weight_that_is_lost_is_missed(to: str, tmp_path: Path) -> None:
    source = trained(tmp_path / "hf")
    lose(source, f"optimizer.master.{EDITED}")
    with pytest.raises(CoverageError, match=f"no fp32 main weight.*{EDITED}"):
        intarsia.convert(source, tmp_path / "out", to=to)


def test_norms_that_were_rounded_around_one_agree_with_their_main_weights(tmp_path: Path) -> None:
    source = fixture("megatron", "td_gdn_tp2")
    config = source / "hf_truth" / "config.json"
    intarsia.convert(source, tmp_path / "hf", to="hf", config=config)
    to_fsdp(tmp_path / "hf", tmp_path / "fsdp")
    weights, found = read_hf(tmp_path / "hf"), logical_tensors(tmp_path / "fsdp")
    state = load_file(tmp_path / "hf" / "optimizer" / "model.safetensors")
    for name in weights:
        if f"optimizer.master.{name}" in state:
            assert torch.equal(found[name], state[f"optimizer.master.{name}"]), name


def test_a_step_that_is_lost_is_missed(tmp_path: Path) -> None:
    source = trained(tmp_path / "hf")
    lose(source, f"optimizer.step.{EDITED}")
    with pytest.raises(CoverageError, match=f"have no step, the.*{EDITED}"):
        intarsia.convert(source, tmp_path / "out", to="torch_dist")


def of_megatron(folder: Path, *, norms: bool = False, **said: bool) -> Path:
    """A checkpoint of Megatron's whose matrices are stored with three bits of mantissa, and what its run says."""
    weights = {
        name: x.to(torch.float8_e4m3fn).to(x.dtype) if x.ndim > 1 or norms else x
        for name, x in model(CONFIG).items()
    }
    intarsia.convert(trained(folder / "hf", **weights), folder / "run", to="torch_dist")
    (file,) = (folder / "run").glob("iter_*/common.pt")
    state = torch.load(file, weights_only=False)
    vars(state["args"]).update(said)
    torch.save(state, file)
    for digests in (folder / "run").rglob("intarsia-digests.json"):
        digests.unlink()  # of other arguments
    return folder / "run"


@pytest.mark.parametrize("by", ["fp8_param_gather", "fp4_param_gather"])
def test_a_run_that_kept_its_weights_in_fewer_bits_has_no_stale_ones(
    by: str, tmp_path: Path
) -> None:
    source = of_megatron(tmp_path, **{by: True})
    found = intarsia.verify(source)
    assert found, found.faults
    assert any(by in note for note in found.notes)
    to_fsdp(source, tmp_path / "fsdp")
    mains, truth = logical_tensors(tmp_path / "fsdp"), logical_tensors(source)
    assert torch.equal(mains[EDITED], truth[f"optimizer.master.{EDITED}"])
    compared = intarsia.verify(source, tmp_path / "fsdp")
    assert compared, compared.different
    assert any(by in note for note in compared.notes)
    intarsia.convert(source, tmp_path / "hub", to="hf")
    assert intarsia.verify(tmp_path / "hub")
    to_fsdp(tmp_path / "hub", tmp_path / "there")
    assert intarsia.verify(tmp_path / "there", tmp_path / "fsdp")


def test_a_run_that_does_not_say_so_has_stale_ones(tmp_path: Path) -> None:
    source = of_megatron(tmp_path, fp8_param_gather=False)
    assert {fault.kind for fault in intarsia.verify(source).faults} == {"master-differs"}
    with pytest.raises(PrecisionError, match="one of the two is stale"):
        to_fsdp(source, tmp_path / "out")


def test_such_a_run_keeps_its_norms_as_they_are_and_these_may_be_stale(tmp_path: Path) -> None:
    source = of_megatron(tmp_path, norms=True, fp8_param_gather=True)
    assert {fault.kind for fault in intarsia.verify(source).faults} == {"master-differs"}
    with pytest.raises(PrecisionError, match="one of the two is stale"):
        to_fsdp(source, tmp_path / "out")

"""Counters that contradict each other: of parameter groups, of iterations, of the tracker."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from tests.checkpoints import read_hf, write_hf
from tests.faults.sound import convert, trained, weights, write
from tests.fixtures import fixture

FSDP = fixture("megatron", "fd_moe_ep2_fsdp2")
"""Megatron-FSDP's own, of experts and with the optimizer's state, at iteration 10."""


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    hub = write(trained(weights(9)), tmp_path / "hub")
    folder = convert(hub, "torch_dist", tmp_path / "out", mesh="")
    next(folder.rglob("intarsia-digests.json")).unlink()
    assert intarsia.verify(folder).sound
    return folder


def edit_common(folder: Path, **changes: Any) -> None:
    where = next(folder.rglob("common.pt"))
    state = torch.load(where, weights_only=False)
    groups = state["optimizer"]["optimizer"]["param_groups"]
    for key, value in changes.items():
        if key == "step":
            groups[0]["step"] = value
        else:
            state[key] = value
    torch.save(state, where)


def test_parameter_groups_at_different_steps_are_a_fault(megatron: Path) -> None:
    edit_common(megatron, step=5)
    faults = intarsia.verify(megatron).faults
    assert {fault.kind for fault in faults} == {"steps-disagree"}
    assert any("5" in fault.text and "7" in fault.text for fault in faults)


def test_an_iteration_in_another_s_folder_is_a_fault(megatron: Path) -> None:
    edit_common(megatron, iteration=400)
    (fault,) = intarsia.verify(megatron).faults
    assert fault.kind == "steps-disagree"
    assert "iteration 400" in fault.text
    assert "iter_0000001" in fault.text
    assert fault.text in intarsia.plan(megatron, to="hf").notes


def test_an_iteration_of_megatron_fsdp_in_another_s_folder_is_a_fault(tmp_path: Path) -> None:
    config = FSDP / "hf_truth" / "config.json"
    assert intarsia.verify(FSDP / "iter_0000010", config=config).sound
    shutil.copytree(FSDP / "iter_0000010", tmp_path / "iter_0000020")
    (fault,) = intarsia.verify(tmp_path / "iter_0000020", config=config).faults
    assert fault.kind == "steps-disagree"
    assert "iteration 10" in fault.text
    assert "iter_0000020" in fault.text


def test_an_expert_that_megatron_trained_is_never_steps_behind(tmp_path: Path) -> None:
    """Its optimizer steps what no token reached, too; torch's leaves that out."""
    intarsia.convert(
        FSDP, tmp_path / "hf", to="hf", config=FSDP / "hf_truth" / "config.json", digests=False
    )
    assert intarsia.verify(tmp_path / "hf").sound
    state = read_hf(tmp_path / "hf" / "optimizer")
    late = [n for n in state if n.startswith("optimizer.step.") and ".experts.0." in n]
    assert late
    for name in late:
        state[name] -= 1
    write_hf(tmp_path / "hf" / "optimizer", state)
    (fault,) = intarsia.verify(tmp_path / "hf").faults
    assert fault.kind == "steps-disagree"
    assert sorted(fault.tensors) == sorted(late)
    (tmp_path / "hf" / "optimizer" / "entries.json").unlink()
    assert intarsia.verify(tmp_path / "hf").sound


def test_a_tracker_that_names_what_is_not_there_is_a_fault(megatron: Path) -> None:
    (megatron / "latest_checkpointed_iteration.txt").write_text("20")
    (fault,) = intarsia.verify(megatron).faults
    assert fault.kind == "file-missing"
    assert "iter_0000020" in fault.text
    assert "iter_0000001" in fault.text

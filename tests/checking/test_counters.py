"""Counters that contradict each other: of parameter groups, of iterations, of the tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from tests.faults.sound import convert, trained, weights, write


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


def test_a_tracker_that_names_what_is_not_there_is_a_fault(megatron: Path) -> None:
    (megatron / "latest_checkpointed_iteration.txt").write_text("20")
    (fault,) = intarsia.verify(megatron).faults
    assert fault.kind == "file-missing"
    assert "iter_0000020" in fault.text
    assert "iter_0000001" in fault.text

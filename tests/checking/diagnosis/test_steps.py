"""Counters of steps that differ are called so, whatever their bits look like."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import write_hf
from tests.faults.sound import trained, weights


@pytest.mark.parametrize(("one", "other"), [(2, 4), (8, 16), (100, 200), (1000, 1001), (7, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.one_in(2)
def test_steps_that_differ_are_neither_lost_nor_flipped(
    one: int, other: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    tensors = trained(weights(1))
    for name, count in (("a", one), ("b", other)):
        step = torch.tensor(count, dtype=dtype)
        steps = {n: step.clone() for n in tensors if n.startswith("optimizer.step.")}
        write_hf(tmp_path / name, tensors | steps)
    report = intarsia.verify(tmp_path / "a", tmp_path / "b")
    assert {d.diagnosis for d in report.different} == {f"step {one} in A, {other} in B"}
    (fault,) = report.faults
    assert (fault.kind, len(fault.tensors)) == ("steps-differ", len(report.different))

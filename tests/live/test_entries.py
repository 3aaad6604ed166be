"""Tensors among the values beside a model come back as the numbers that they showed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import intarsia
from intarsia.errors import UsageError


def test_a_conjugated_and_a_negated_view_come_back_as_numbers(tmp_path: Path) -> None:
    shown = torch.tensor([1 + 2j, 3 - 4j]).conj()
    intarsia.save(tmp_path / "a", {"x": torch.ones(2)}, extra={"c": shown, "n": shown.imag})
    found = intarsia.load(tmp_path / "a", into={"x": torch.zeros(2)}).extra
    assert torch.equal(found["c"], torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(found["n"], torch.tensor([-2.0, 4.0]))


def test_a_sparse_tensor_is_refused_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"extra\['s'\].*torch.sparse_coo"):
        intarsia.save(tmp_path / "a", {"x": torch.ones(2)}, extra={"s": torch.eye(2).to_sparse()})


def test_torch_reads_the_tensors_among_the_values(tmp_path: Path) -> None:
    window = torch.arange(12.0).reshape(3, 4)[1:, ::2]
    given = {"generators": {"torch": window.byte()}, "window": window, "none": torch.empty(0, 3)}
    intarsia.save(tmp_path / "a", {"x": torch.ones(2)}, extra=given)
    read = {f"extra.{key}": None for key in given}
    dcp.load(read, checkpoint_id=tmp_path / "a", no_dist=True)
    ours = intarsia.load(tmp_path / "a", into={"x": torch.zeros(2)}).extra
    for found in (ours, {key: read[f"extra.{key}"] for key in given}):
        assert torch.equal(found["generators"]["torch"], window.byte())
        assert torch.equal(found["window"], window)
        assert found["window"].untyped_storage().nbytes() == window.numel() * 4
        assert found["none"].shape == (0, 3)

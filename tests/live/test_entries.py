"""Tensors among the values beside a model come back as the numbers that they showed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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

"""Tensors among the values beside a model come back as the numbers that they showed."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import intarsia
from intarsia.errors import CoverageError, UsageError


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


class Counting(nn.Linear):
    """A layer with a state of its own."""

    seen = 0

    def get_extra_state(self) -> int:
        return self.seen

    def set_extra_state(self, seen: int) -> None:
        self.seen = seen


@pytest.mark.parametrize("who", ["ours", "torch"])
def test_values_that_were_saved_beside_a_model_are_loaded_with_it(who: str, tmp_path: Path) -> None:
    model, beside = Counting(2, 2), {"step": 7, "train_state": {"tokens": 9}, "text": {"a.b": "c"}}
    model.seen = 5
    if who == "ours":
        intarsia.save(tmp_path / "a", {"model": model, **beside})
    else:
        saved = {"model": model.state_dict(), **beside}
        dcp.save(saved, checkpoint_id=tmp_path / "a", no_dist=True)
    again = Counting(2, 2)
    found = intarsia.load(tmp_path / "a", into=again)
    assert found.extra == {"step": 7, "train_state.tokens": 9, "text.a.b": "c"}
    assert again.seen == 5
    plain = intarsia.load(tmp_path / "a", into=nn.Linear(2, 2))
    assert plain.extra == {**found.extra, "_extra_state": 5}
    into = {"model": Counting(2, 2), "step": 0}
    assert intarsia.load(tmp_path / "a", into=into).extra == found.extra
    assert (into["step"], into["model"].seen) == (7, 5)  # type: ignore[union-attr]


def test_objects_that_torch_saved_beside_a_model_are_named(tmp_path: Path) -> None:
    saved = {
        "model": nn.Linear(2, 2).state_dict(),
        "half": Fraction(1, 2),
        "array": [numpy.ones(2)],
        "sets": {"a": {1}},
    }
    dcp.save(saved, checkpoint_id=tmp_path / "a", no_dist=True)
    report = intarsia.load(tmp_path / "a", into=nn.Linear(2, 2))
    assert report.extra == {"sets.a": {1}}
    assert report.notes == ["not loaded, because they are objects of other classes: half, array"]


def test_values_of_a_dict_below_the_key_of_its_tensors_come_back(tmp_path: Path) -> None:
    saved = {"model": {"w": torch.ones(2), "count": 5}}
    intarsia.save(tmp_path / "ours", saved)
    dcp.save(saved, checkpoint_id=tmp_path / "torchs", no_dist=True)
    for path in (tmp_path / "ours", tmp_path / "torchs"):
        into = {"model": {"w": torch.zeros(2), "count": 0}}
        intarsia.load(path, into=into)
        assert str(into) == str(saved)


@pytest.mark.parametrize("name", ["layer.weight", "extra.x", "extra_of_rank.0_of_1.x"])
def test_a_value_with_a_name_that_is_taken_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"the value `{name}` of the dict has the name of"):
        intarsia.save(tmp_path / "a", {"layer": nn.Linear(2, 2), name: 5})


def test_values_that_would_pass_for_an_optimizers_come_back(tmp_path: Path) -> None:
    saved = {"model": nn.Linear(2, 2), "optim": {"lr": 0.1}, "state": {"x": 1}, "param_groups": [2]}
    intarsia.save(tmp_path / "a", saved)
    into = {"model": nn.Linear(2, 2), "optim": {"lr": 0}, "state": {"x": 0}, "param_groups": []}
    intarsia.load(tmp_path / "a", into=into)
    assert {**into, "model": None} == {**saved, "model": None}


def test_a_value_and_a_tensor_of_one_name_are_told_apart(tmp_path: Path) -> None:
    model, number = nn.Linear(2, 2), torch.tensor(7)
    intarsia.save(tmp_path / "number", {"model": model, "step": 7})
    intarsia.save(tmp_path / "tensor", {"model": model, "step": number})
    with pytest.raises(CoverageError, match="`step`: the checkpoint has a tensor of this name"):
        intarsia.load(tmp_path / "tensor", into={"model": model, "step": 0})
    with pytest.raises(CoverageError, match="a value of the name `step` that is no tensor"):
        intarsia.load(tmp_path / "number", into={"model": model, "step": torch.tensor(0)})


def test_the_extra_state_that_a_model_of_a_dict_took_is_not_given_again(tmp_path: Path) -> None:
    model = Counting(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.seen = 5
    intarsia.save(tmp_path / "a", {"model": model, "optimizer": optimizer, "step": 7})
    again = Counting(2, 2)
    into = {"model": again, "optimizer": torch.optim.SGD(again.parameters(), lr=0.1)}
    assert intarsia.load(tmp_path / "a", into=into).extra == {"step": 7}
    assert again.seen == 5

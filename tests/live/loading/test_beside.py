"""Counters beside the models that are asked for are left with a note; anything else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import intarsia

OTHERS = "not loaded, because they are other models (section= loads one of them): "
COUNTERS = "not loaded, because a run saved them beside the model: "


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))


def saved(path: Path, **more: Any) -> Path:
    intarsia.save(path, {"model": net(), "ema": net(), **more})
    return path


@pytest.mark.parametrize("key", ["seen", "train_state"])
def test_whole_numbers_below_a_key_that_a_dict_lacks_are_noted(key: str, tmp_path: Path) -> None:
    seen = torch.tensor(7)
    path = saved(tmp_path / "out", **{key: seen if key == "seen" else {"a": seen, "b": seen}})
    names = key if key == "seen" else f"{key}.a, {key}.b"
    report = intarsia.load(path, into={"model": net(), "ema": net()})
    assert report.notes == [f"{COUNTERS}{names}"]
    into = {"model": net(), "ema": net(), "seen": torch.tensor(0)}
    if key == "seen":
        assert intarsia.load(path, into=into).notes == []
        assert into["seen"] == 7


def test_a_load_of_the_model_alone_notes_the_others(tmp_path: Path) -> None:
    path = saved(tmp_path / "out")
    assert intarsia.load(path, into=net()).notes == [f"{OTHERS}ema"]
    assert intarsia.load(path, into=net(), section="model").notes == []


@pytest.mark.parametrize(
    "more",
    [
        {"swa": net()},
        {"alpha": torch.tensor(0.5)},
        {"run": {"a": torch.ones(1), "b": torch.tensor(1)}},
    ],
)
def test_anything_else_is_refused_where_a_dict_does_not_ask_for_it(
    more: dict[str, Any], tmp_path: Path
) -> None:
    path = saved(tmp_path / "out", **more)
    with pytest.raises(intarsia.CoverageError, match=f"are not in the model: {next(iter(more))}"):
        intarsia.load(path, into={"model": net(), "ema": net()})


def test_names_of_tensors_are_no_keys(tmp_path: Path) -> None:
    intarsia.save(
        tmp_path / "out",
        {"a.weight": torch.ones(2), "b.weight": torch.ones(2), "c.at": torch.tensor(1)},
    )
    with pytest.raises(
        intarsia.CoverageError, match=r"2 tensors .* not in the model: b.weight, c.at"
    ):
        intarsia.load(tmp_path / "out", into={"a.weight": torch.ones(2)}, section=".")
    model = nn.ModuleDict({"a": nn.LayerNorm(2, bias=False)})
    with pytest.raises(
        intarsia.CoverageError, match=r"2 tensors .* not in the model: b.weight, c.at"
    ):
        intarsia.load(tmp_path / "out", into=model, section=".")

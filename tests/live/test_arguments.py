"""What is given to a save, a load or a conversion is of the kind that is asked for, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.errors import UsageError
from intarsia.live.entries import MOST_LEVELS


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "a"
    intarsia.save(path, nn.Linear(2, 2))
    return path


CALLS: dict[str, Callable[..., Any]] = {
    "save": lambda _, out, **given: intarsia.save(out, nn.Linear(2, 2), **given),
    "load": lambda at, _, **given: intarsia.load(at, nn.Linear(2, 2), **given),
    "convert": lambda at, out, **given: intarsia.convert(at, out, to="hf", **given),
    "digest": lambda at, _, **given: intarsia.digest(at, **given),
}
FLAGS = {
    "save": ("background", "overwrite", "latest"),
    "load": ("strict", "cast", "mapped"),
    "convert": ("resume", "overwrite", "alone", "digests"),
    "digest": ("secure", "alone"),
}


@pytest.mark.parametrize(("call", "flag"), [(c, f) for c, names in FLAGS.items() for f in names])
def test_a_flag_is_true_or_false(call: str, flag: str, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"`{flag}` is 'no' of type str"):
        CALLS[call](saved, tmp_path / "out", **{flag: "no"})
    assert not [*tmp_path.iterdir()]
    CALLS[call](saved, tmp_path / "out", **{flag: np.False_})


ARRAY: Any = np.ones(2)


@pytest.mark.parametrize("flag", FLAGS["save"])
def test_an_array_is_no_flag(flag: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"`{flag}` is array\(.*of type ndarray"):
        CALLS["save"](None, tmp_path / "out", **{flag: ARRAY})


def test_an_array_is_no_path() -> None:
    with pytest.raises(UsageError, match=r"found array.* of type ndarray"):
        intarsia.open(ARRAY)


@pytest.mark.parametrize("name", [3, None, ["weight"], b"weight"], ids=repr)
def test_the_name_of_a_tensor_is_text(name: Any, saved: Path) -> None:
    with pytest.raises(UsageError, match="a tensor's name is text, found"):
        intarsia.explain(saved, name)


@pytest.mark.parametrize(
    ("model", "mesh", "wrong"),
    [(3, 4, "model"), (nn.Linear, 4, "model"), (nn.Linear(2, 2), 4, "mesh")],
)
def test_only_a_model_is_put_on_only_a_mesh(model: Any, mesh: Any, wrong: str) -> None:
    with pytest.raises(UsageError, match=f"^`{wrong}` is "):
        intarsia.parallelize(model, mesh)


@pytest.mark.parametrize("call", CALLS)
def test_progress_is_a_function(call: str, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`progress` is 'yes' of type str"):
        CALLS[call](saved, tmp_path / "out", progress="yes")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", [["hf"], None, dict], ids=repr)
def test_a_format_is_text(to: Any, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown format"):
        intarsia.convert(saved, tmp_path / "out", to=to)


def test_a_size_is_no_flag(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="True is not a size"):
        intarsia.convert(saved, tmp_path / "out", to="hf", max_shard_size=True)


def test_a_rank_is_a_number(saved: Path) -> None:
    rank: Any = "0"
    with pytest.raises(UsageError, match="rank '0' is not in a mesh of 2 ranks"):
        intarsia.load(saved, nn.Linear(2, 2), mesh={"tp": 2}, rank=rank)


GIVEN: dict[str, tuple[Any, str]] = {
    "model": (nn.Linear, "the class Linear was given, not"),
    "in a dict": ({"a": {"b": nn.Linear}}, "the class Linear was given under `a.b`, not"),
    "optimizer": ({"a": torch.optim.Adam}, "the class Adam was given under `a`, not"),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_class_is_no_model(kind: str, saved: Path, tmp_path: Path) -> None:
    given, told = GIVEN[kind]
    with pytest.raises(UsageError, match=told):
        intarsia.save(tmp_path / "out", given)
    with pytest.raises(UsageError, match=told):
        intarsia.load(saved, given)


def nested(depth: int) -> dict[str, Any]:
    return reduce(lambda inner, _: {"a": inner}, range(depth), {"w": torch.ones(2)})


def endless() -> dict[str, Any]:
    found: dict[str, Any] = {"w": torch.ones(2)}
    found["itself"] = [found]
    return found


@pytest.mark.parametrize("deep", [nested(1100), endless()], ids=["deep", "endless"])
def test_what_is_nested_without_end_is_refused(deep: Any, saved: Path, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    by_group, by_state = (torch.optim.SGD(model.parameters()) for _ in range(2))
    by_group.param_groups[0]["more"] = deep
    by_state.state[model.weight]["more"] = deep
    calls: dict[str, Callable[[], Any]] = {
        "the dict": lambda: intarsia.save(tmp_path / "a", deep),
        "the dict ": lambda: intarsia.load(saved, deep),
        "`extra['k']`": lambda: intarsia.save(tmp_path / "b", model, extra={"k": deep}),
        "`config`": lambda: intarsia.save(tmp_path / "c", model, config=deep),
        "`optimizer.param_groups.0.more`": lambda: intarsia.save(tmp_path / "d", model, by_group),
        "`optimizer.state.weight.more`": lambda: intarsia.save(tmp_path / "e", model, by_state),
    }
    for what, call in calls.items():
        with pytest.raises(UsageError) as refused:
            call()
        told = f"{what.strip()} is nested deeper than {MOST_LEVELS} levels, or contains itself"
        assert refused.value.message == told
    assert not [*tmp_path.iterdir()]


def test_what_is_nested_as_deep_as_it_may_be_is_saved_and_loaded(tmp_path: Path) -> None:
    deep = nested(MOST_LEVELS - 1)
    intarsia.save(tmp_path / "a", nn.Linear(2, 2), extra={"k": deep})
    assert str(intarsia.load(tmp_path / "a", nn.Linear(2, 2)).extra["k"]) == str(deep)
    intarsia.save(tmp_path / "b", deep)
    intarsia.load(tmp_path / "b", into=nested(MOST_LEVELS - 1))

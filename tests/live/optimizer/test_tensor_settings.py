"""Settings of an optimizer that are tensors or have some in them come back as they were; others are refused, saved by whomever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

import intarsia

Adam = torch.optim.AdamW


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))


def stepped(model: nn.Module, *, groups: int = 1, **settings: Any) -> Adam:
    params = [*model.parameters()]
    optimizer = Adam([{"params": params[k::groups]} for k in range(groups)])
    for weight in params:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    for group in optimizer.param_groups:
        group.update(settings)
    return optimizer


def said(value: Any) -> Any:
    """A setting with all there is to compare of it."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: said(x) for key, x in value.items()}
    return [type(value), *map(said, value)] if isinstance(value, (list, tuple)) else value


one, two = torch.tensor(0.1), torch.tensor(0.2, dtype=torch.float64)

WITH_TENSORS: dict[str, Any] = {
    "tensor": one,
    "betas": (one, two),
    "list": [one, [two, "text"]],
    "dict": {"a": one, "b": {"c": [two, None]}},
    "mixed": (one, 0.2),
}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", WITH_TENSORS)
def test_a_setting_with_tensors_comes_back_as_it_was(
    kind: str, groups: int, tmp_path: Path
) -> None:
    model, value = net(1), WITH_TENSORS[kind]
    intarsia.save(tmp_path / "out", model, stepped(model, groups=groups, own=value))
    assert bool(intarsia.verify(tmp_path / "out"))
    for mine in ({}, {"own": value}):
        again = net(2)
        other = stepped(again, groups=groups, **mine)
        intarsia.load(tmp_path / "out", again, other)
        assert all(said(group["own"]) == said(value) for group in other.param_groups)
        assert other.param_groups[0]["own"] is not value


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", WITH_TENSORS)
def test_a_setting_with_tensors_that_torch_saved_comes_back(
    kind: str, flat: bool, tmp_path: Path
) -> None:
    model, value = net(1), WITH_TENSORS[kind]
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    state = get_optimizer_state_dict(model, stepped(model, own=value), options=options)
    saved = {"model": model.state_dict(), "optimizer": state}
    dcp.save(saved, checkpoint_id=tmp_path / "out", no_dist=True)
    again = net(2)
    other = stepped(again, own=value)
    intarsia.load(tmp_path / "out", again, other)
    assert said(other.param_groups[0]["own"]) == said(value)


def test_a_list_that_torch_took_apart_is_refused_where_nothing_says_that_it_was_one(
    tmp_path: Path,
) -> None:
    model = net(1)
    saved = {
        "model": model.state_dict(),
        "optimizer": get_optimizer_state_dict(model, stepped(model, own=[one, two])),
    }
    dcp.save(saved, checkpoint_id=tmp_path / "out", no_dist=True)
    for mine in ({}, {"own": [one]}, {"own": {0: one, 1: two}}):
        again = net(2)
        other = stepped(again, **mine)
        with pytest.raises(intarsia.UsageError, match=r"`own`.* was a list or a dictionary"):
            intarsia.load(tmp_path / "out", again, other)
        intarsia.load(tmp_path / "out", again, other, hyperparameters="mine")


@pytest.mark.parametrize("value", [{1, 2}, 1 + 2j, torch.float32, b"bytes", (one, {1})], ids=repr)
def test_a_setting_of_torchs_that_is_not_restored_is_refused(value: Any, tmp_path: Path) -> None:
    model = net(1)
    state = get_optimizer_state_dict(model, stepped(model, own=value))
    saved = {"model": model.state_dict(), "optimizer": state}
    dcp.save(saved, checkpoint_id=tmp_path / "out", no_dist=True)
    again = net(2)
    other = stepped(again)
    with pytest.raises(
        intarsia.UsageError, match=r"`optimizer.param_groups.0.own`.* is not restored"
    ):
        intarsia.load(tmp_path / "out", again, other)
    intarsia.load(tmp_path / "out", again, other, hyperparameters="mine")


class Subclass(dict[str, Any]):
    """A dict that would come back as another."""


@pytest.mark.parametrize(
    "value",
    [{1, 2}, Subclass(a=one), [torch.eye(2).to_sparse()], torch.eye(2).to_sparse()],
    ids=repr,
)
def test_a_setting_that_would_not_come_back_is_not_saved(value: Any, tmp_path: Path) -> None:
    model = net(1)
    optimizer = stepped(model, own=value)
    with pytest.raises(intarsia.IntarsiaError, match=r"`optimizer.param_groups.0.own`"):
        intarsia.save(tmp_path / "out", model, optimizer)


def test_torch_loads_betas_of_tensors_that_were_saved_here(tmp_path: Path) -> None:
    model = net(1)
    intarsia.save(tmp_path / "out", model, stepped(model, betas=(one, two)))
    again = net(2)
    state = get_optimizer_state_dict(again, stepped(again, betas=(two, one)))
    into = {**again.state_dict(), "optimizer": state}
    dcp.load(into, checkpoint_id=tmp_path / "out", no_dist=True)
    assert said(into["optimizer"]["param_groups"][0]["betas"]) == said((one, two))


def two_groups(model: nn.Module, rate: Any, other: Any) -> Adam:
    params = [*model.parameters()]
    groups = [{"params": params[:2], "lr": rate}, {"params": params[2:], "lr": other}]
    return Adam(groups, weight_decay=rate)


@pytest.mark.parametrize("kind", ["tensor", "number"])
def test_a_tensor_that_groups_share_is_still_one_after_loading(kind: str, tmp_path: Path) -> None:
    """As after torch's own `load_state_dict`: who fills it sets the rate of all groups."""
    model, again, rate, mine = net(1), net(2), torch.tensor(0.25), torch.tensor(0.5)
    saved = two_groups(model, *((rate, rate) if kind == "tensor" else (0.25, 0.25)))
    intarsia.save(tmp_path / "out", model, saved)
    other = two_groups(again, mine, mine)
    intarsia.load(tmp_path / "out", again, other)
    first, second = other.param_groups
    assert first["lr"] is second["lr"]
    assert said(first["lr"]) == said(rate)
    assert said(mine) == said(torch.tensor(0.5))


def test_a_tensor_that_groups_share_is_two_where_the_checkpoint_has_two_numbers(
    tmp_path: Path,
) -> None:
    model, again, mine = net(1), net(2), torch.tensor(0.5)
    intarsia.save(tmp_path / "out", model, two_groups(model, one, torch.tensor(0.75)))
    other = two_groups(again, mine, mine)
    intarsia.load(tmp_path / "out", again, other)
    first, second = other.param_groups
    assert [float(first["lr"]), float(second["lr"])] == [float(one), 0.75]
    assert first["weight_decay"] is second["weight_decay"] is first["lr"]


def test_equal_tensors_that_are_two_stay_two(tmp_path: Path) -> None:
    model, again, rate = net(1), net(2), torch.tensor(0.25)
    intarsia.save(tmp_path / "out", model, two_groups(model, rate, rate))
    other = two_groups(again, torch.tensor(0.5), torch.tensor(0.5))
    intarsia.load(tmp_path / "out", again, other)
    assert other.param_groups[0]["lr"] is not other.param_groups[1]["lr"]

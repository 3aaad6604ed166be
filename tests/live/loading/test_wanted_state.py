"""What torch saved of several models and their optimizers fills a dict of the same keys, each optimizer with its own state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)

import intarsia

Adam = torch.optim.AdamW


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))


def stepped(model: nn.Module, lr: float) -> Adam:
    optimizer = Adam(model.parameters(), lr=lr)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    return optimizer


def by_name(model: nn.Module, optimizer: Adam) -> dict[str, Any]:
    return dict(get_optimizer_state_dict(model, optimizer))


def flat(model: nn.Module, optimizer: Adam) -> dict[str, Any]:
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    return dict(get_optimizer_state_dict(model, optimizer, options=options))


def numbered(model: nn.Module, optimizer: Adam) -> dict[str, Any]:
    return dict(optimizer.state_dict())


def same(one: nn.Module, other: nn.Module) -> bool:
    both = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in both)


def same_state(one: Adam, other: Adam) -> bool:
    both = zip(one.state.values(), other.state.values(), strict=True)
    same_kinds = all(
        a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in both
    )
    return same_kinds and one.param_groups[0]["lr"] == other.param_groups[0]["lr"]


State = Callable[[nn.Module, Adam], dict[str, Any]]


@pytest.mark.parametrize("spelled", [by_name, flat, numbered])
@pytest.mark.parametrize("key", ["optimizer", "optim"])
def test_a_model_its_average_and_its_optimizer_come_back_from_torch(
    spelled: State, key: str, tmp_path: Path
) -> None:
    model, ema = net(1), net(2)
    optimizer = stepped(model, 0.25)
    saved = {
        "model": get_model_state_dict(model),
        "ema": get_model_state_dict(ema),
        key: spelled(model, optimizer),
        "step": 7,
    }
    dcp.save(saved, checkpoint_id=tmp_path / "out", no_dist=True)
    for beside in (False, True):
        again, average = net(8), net(9)
        other = Adam(again.parameters(), lr=0.5)
        into: dict[str, Any] = {"model": again, "ema": average, "step": 0}
        given = {"optimizer": other} if beside else {}
        into |= {} if beside else {key: other}
        report = intarsia.load(tmp_path / "out", into=into, **given)
        assert same(again, model)
        assert same(average, ema)
        assert same_state(other, optimizer)
        assert into["step"] == 7
        assert (report.tensors, report.state_tensors, len(report.hyperparameters)) == (8, 12, 1)


@pytest.mark.parametrize("spelled", [by_name, flat])
@pytest.mark.parametrize("keys", [("actor_optimizer", "critic_optimizer"), ("opt_a", "opt_b")])
def test_each_of_two_models_takes_the_state_of_its_own_optimizer(
    keys: tuple[str, str], spelled: State, tmp_path: Path
) -> None:
    models = {"actor": net(1), "critic": net(2)}
    optimizers = {
        key: stepped(model, lr)
        for key, model, lr in zip(keys, models.values(), (0.25, 0.125), strict=True)
    }
    saved: dict[str, Any] = {name: get_model_state_dict(model) for name, model in models.items()}
    for (key, optimizer), model in zip(optimizers.items(), models.values(), strict=True):
        saved[key] = spelled(model, optimizer)
    dcp.save(saved, checkpoint_id=tmp_path / "out", no_dist=True)
    again = {"actor": net(8), "critic": net(9)}
    others = {
        key: Adam(model.parameters(), lr=0.5)
        for key, model in zip(keys, again.values(), strict=True)
    }
    intarsia.load(tmp_path / "out", into={**again, **others})
    assert all(same(again[name], models[name]) for name in models)
    assert all(same_state(others[key], optimizers[key]) for key in keys)


def save_beside_an_average(folder: Path) -> None:
    """What torch saves of a model, another of the same shapes, and the first one's optimizer."""
    model = net(1)
    saved = {
        "model": get_model_state_dict(model),
        "ema": get_model_state_dict(net(2)),
        "optimizer": by_name(model, stepped(model, 0.25)),
    }
    dcp.save(saved, checkpoint_id=folder, no_dist=True)


def test_an_optimizer_under_the_key_of_another_models_is_refused(tmp_path: Path) -> None:
    save_beside_an_average(tmp_path / "out")
    again, ema = net(8), net(9)
    into = {"model": again, "ema": ema, "optimizer": Adam(ema.parameters())}
    with pytest.raises(
        intarsia.IntarsiaError, match=r"`optimizer` of .* is not the optimizer of `ema`"
    ):
        intarsia.load(tmp_path / "out", into=into)


def test_state_of_a_parameter_that_the_optimizer_of_a_dict_does_not_step_is_refused(
    tmp_path: Path,
) -> None:
    save_beside_an_average(tmp_path / "out")
    again = net(8)
    into = {"model": again, "ema": net(9), "optimizer": Adam([*again.parameters()][:1])}
    with pytest.raises(intarsia.IntarsiaError, match=r"state of 3 parameters .*: model\.0\.bias"):
        intarsia.load(tmp_path / "out", into=into)

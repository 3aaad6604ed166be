"""Learning rates that are tensors are compared, whether torch wrote them by group or by parameter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

import intarsia


def saved(path: Path, *rates: float, flat: bool, without: str = "") -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
    groups = [
        {"params": [*layer.parameters()], "lr": torch.tensor(rate)}
        for layer, rate in zip(model, rates, strict=True)
    ]
    optimizer = torch.optim.Adam(groups)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"].fill_(rate)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    state.pop(without, None)
    # What differs is the rates alone.
    tensors = {name: torch.zeros_like(x) for name, x in model.state_dict().items()}
    dcp.save({"model": tensors, "optimizer": state}, checkpoint_id=path, no_dist=True)
    return path


@pytest.mark.parametrize("turned", [False, True])
def test_rates_by_group_equal_the_same_by_parameter(turned: bool, tmp_path: Path) -> None:
    both = [
        saved(tmp_path / "a", 0.25, 0.5, flat=turned),
        saved(tmp_path / "b", 0.25, 0.5, flat=not turned),
    ]
    assert intarsia.verify(*both), str(intarsia.verify(*both))


@pytest.mark.parametrize("turned", [False, True])
def test_another_rate_is_found_by_its_parameters(turned: bool, tmp_path: Path) -> None:
    found = intarsia.verify(
        saved(tmp_path / "a", 0.25, 0.5, flat=turned),
        saved(tmp_path / "b", 0.25, 0.75, flat=not turned),
    )
    assert not found
    names = {x.tensor for x in found.different}
    assert names == {f"optimizer.param_groups.1.{x}.lr" for x in ("weight", "bias")}
    assert not found.only_in_a
    assert not found.only_in_b


def test_a_rate_that_one_parameter_lacks_is_missed(tmp_path: Path) -> None:
    found = intarsia.verify(
        saved(tmp_path / "a", 0.25, 0.5, flat=False),
        saved(tmp_path / "b", 0.25, 0.5, flat=True, without="param_groups.1.bias.lr"),
    )
    assert not found
    assert found.only_in_a == ("optimizer.param_groups.1.lr",)
    assert found.only_in_b == ("optimizer.param_groups.1.weight.lr",)

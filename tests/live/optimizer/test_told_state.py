"""Optimizers that compute their state dict: what they hold is saved only where it is what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import intarsia
from intarsia.errors import UsageError


class Scaled(torch.optim.SGD):
    """Keeps its momentum in halves of a number beside a scale, as TransformerEngine's FusedAdam does."""

    kind, scale = torch.float16, 0.5

    def state_dict(self) -> dict[str, Any]:
        found = super().state_dict()
        for number, state in found["state"].items():
            assert state["momentum_buffer"].dtype == self.kind
            widened = state["momentum_buffer"].float() * self.scale
            found["state"][number] = {"momentum_buffer": widened}
        return found


class Narrow(Scaled):
    """Keeps it in fewer bits, and the same numbers."""

    kind, scale = torch.bfloat16, 1.0


def trained(kind: type[Scaled]) -> tuple[nn.Module, Scaled]:
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1, momentum=0.9)
    for p in model.parameters():
        optimizer.state[p]["momentum_buffer"] = torch.randn(p.shape).to(kind.kind)
    return model, optimizer


def test_state_that_is_other_numbers_than_its_state_dict_has_is_refused(tmp_path: Path) -> None:
    model, optimizer = trained(Scaled)
    with pytest.raises(UsageError, match="Scaled holds other numbers in `momentum_buffer`"):
        intarsia.save(tmp_path / "a", model, optimizer)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({**weights, "optimizer": state}, checkpoint_id=tmp_path / "b", no_dist=True)
    with pytest.raises(UsageError, match="Scaled holds other numbers"):
        intarsia.load(tmp_path / "b", *trained(Scaled))
    fresh = nn.Linear(3, 2)
    with pytest.raises(UsageError, match=r"not take the state .* AssertionError"):
        intarsia.load(tmp_path / "b", fresh, Scaled(fresh.parameters(), lr=0.1, momentum=0.9))


def test_the_same_numbers_in_fewer_bits_come_back(tmp_path: Path) -> None:
    (model, optimizer), (other, again) = trained(Narrow), trained(Narrow)
    intarsia.save(tmp_path / "a", model, optimizer)
    intarsia.load(tmp_path / "a", other, again)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        held, found = (o.state[x]["momentum_buffer"] for o, x in ((optimizer, p), (again, q)))
        assert found.dtype == torch.bfloat16
        assert torch.equal(held, found)


def test_what_a_hook_adds_to_a_state_dict_is_not_lost(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
    with pytest.raises(UsageError, match="the state dict of SGD holds more in addition"):
        intarsia.save(tmp_path / "a", model, optimizer)

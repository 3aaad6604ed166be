"""Memory for tensors on `meta`: in their own order, and of their own class."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from intarsia.live.loading.materialise import materialise


class Marked(torch.Tensor):
    """A tensor of a framework's own class."""


def test_memory_has_the_order_and_the_class_of_what_is_on_meta() -> None:
    model = nn.Linear(4, 6, device="meta", dtype=torch.bfloat16)
    model.weight = nn.Parameter(torch.empty(4, 6, device="meta").t(), requires_grad=False)
    model.register_buffer("scale", torch.empty(3, device="meta").as_subclass(Marked))
    assert materialise(model) == []
    assert model.weight.stride() == (1, 6)
    assert not model.weight.requires_grad
    assert model.bias.dtype == torch.bfloat16
    assert model.bias.requires_grad
    assert type(model.scale) is Marked
    assert {x.device.type for x in model.state_dict().values()} == {"cpu"}


class Watched(nn.Linear):
    """A module that does something of its own when its tensors are replaced."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        found = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.seen = self.weight.device.type
        return found


def test_a_module_with_an_apply_of_its_own_is_asked_for_it() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 3), Watched(3, 4))
    materialise(model)
    assert model[1].seen == "cpu"
    assert {x.device.type for x in model.parameters()} == {"cpu"}


def test_what_has_memory_stays_and_what_is_tied_stays_tied() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, device="meta"), nn.Linear(3, 3))
    model[2].weight = model[1].weight
    kept, numbers = model[0].weight, model[0].weight.detach().clone()
    model[1].weight.note = "mine"
    model[1].bias.requires_grad_(False)
    materialise(model)
    assert model[0].weight is kept
    assert torch.equal(kept, numbers)
    assert model[1].weight is model[2].weight
    assert not model[1].weight.is_meta
    assert model[1].weight.note == "mine"
    assert [x.requires_grad for x in model[1].parameters()] == [True, False]


def test_a_gradient_is_given_memory_with_its_parameter() -> None:
    model = nn.Linear(3, 3, device="meta")
    model.weight.grad = torch.empty(3, 3, device="meta")
    materialise(model)
    assert model.weight.grad is not None
    assert model.weight.grad.device.type == "cpu"


@pytest.mark.parametrize("kind", [nn.Linear, Watched])
def test_hooks_on_gradients_stay(kind: type[nn.Linear]) -> None:
    """An optimizer that steps inside of `backward` would never step without its hook."""
    model = nn.Sequential(kind(3, 3, device="meta"), kind(3, 3, device="meta"))
    model[1].weight = model[0].weight
    seen: list[Any] = []
    model[0].weight.register_post_accumulate_grad_hook(seen.append)
    handle = model[0].bias.register_hook(lambda grad: seen.append("bias"))
    materialise(model)
    model(torch.ones(2, 3)).sum().backward()
    assert [x if x == "bias" else id(x) for x in seen] == ["bias", id(model[0].weight)]
    handle.remove()
    model(torch.ones(2, 3)).sum().backward()
    assert len(seen) == 3

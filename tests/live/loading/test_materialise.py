"""Memory for tensors on `meta`: in their own order, and of their own class."""

from __future__ import annotations

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

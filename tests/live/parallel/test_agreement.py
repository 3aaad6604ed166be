"""A fingerprint tells models apart that a mesh must not mix; the exchange is in `tests/distributed`."""

from __future__ import annotations

import torch
from torch import nn

from intarsia.live.parallel.agreement import SAMPLES, fingerprints


def layer(**changes: object) -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(**{"in_features": 200, "out_features": 30, **changes})  # type: ignore[arg-type]


def test_the_same_weights_have_one_fingerprint() -> None:
    assert fingerprints(layer()) == fingerprints(layer())


def test_names_shapes_and_types_are_one_number_and_values_another() -> None:
    whole = fingerprints(layer())
    other = layer()
    other.weight.data.zero_()
    assert fingerprints(other)[0] == whole[0]
    assert fingerprints(other)[1] != whole[1]
    for changed in (layer(bias=False), layer(out_features=15), layer(device="meta")):
        assert fingerprints(changed)[0] != whole[0]
    assert fingerprints(layer().to(torch.bfloat16))[0] != whole[0]


def test_a_change_longer_than_a_sampling_step_is_seen() -> None:
    other = layer()
    size = other.weight.numel()
    assert size > SAMPLES
    other.weight.data.view(-1)[100 : 100 + size // SAMPLES + 1] += 1
    assert fingerprints(other) != fingerprints(layer())


def test_buffers_that_are_saved_count() -> None:
    one, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    other.running_mean += 1  # type: ignore[operator]
    assert fingerprints(one) != fingerprints(other)

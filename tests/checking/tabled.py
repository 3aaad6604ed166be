"""Weights for every tensor that the table of a family names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from intarsia.family import table_for
from tests.checkpoints import normal_tensor


def tabled(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Numbers like those of a trained model, of what this configuration's table says is stored."""
    table = table_for(config)
    assert table is not None
    return {
        name: normal_tensor(shape, torch.bfloat16, k) * 0.05
        for k, (name, shape) in enumerate(table.logical.items())
        if name not in table.tied
    }

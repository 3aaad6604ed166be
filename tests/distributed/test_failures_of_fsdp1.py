"""What torch's FSDP 1 saves wrongly of an optimizer without a word, and `verify` finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

import intarsia
from tests.distributed.ranks import on_ranks


def saved_whole(folder: Path) -> bool:
    """Save model and optimizer whole; whether torch gave both moments the same numbers."""
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    model = FullyShardedDataParallel(nn.Linear(6, 5), use_orig_params=True, device_id=cpu)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(3, 6)).square().sum().backward()
        optimizer.step()
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = FullyShardedDataParallel.optim_state_dict(model, optimizer)
        dcp.save({"model": model.state_dict(), "optim": state}, checkpoint_id=str(folder))
    return torch.equal(*(state["state"]["weight"][kind] for kind in ("exp_avg", "exp_avg_sq")))


@pytest.mark.slow
def test_moments_that_were_gathered_into_one_memory_are_found(tmp_path: Path) -> None:
    assert all(on_ranks(2, saved_whole, tmp_path / "saved"))
    (fault,) = intarsia.verify(tmp_path / "saved").faults
    assert fault.kind == "tensor-repeated"
    assert "exp_avg equals exp_avg_sq in 1 matrices: optimizer.exp_avg.weight" in fault.text

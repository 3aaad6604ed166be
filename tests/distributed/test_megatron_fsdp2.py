"""A Megatron model in torch's own FSDP: DTensors of tensor-parallel parts, on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import intarsia
from tests.distributed.ranks import on_ranks
from tests.live.megatron_stand_in import last_stage, write_model


def through_fsdp2(folder: Path, out: Path) -> list[str]:
    """What `full_tensor()` makes of the shards, beside a model that is not sharded."""
    plain, model = last_stage(1, 1), last_stage(1, 1)
    intarsia.load(folder, into=plain, strict=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
    report = intarsia.load(folder, into=model, strict=False)
    intarsia.save(out, model, config=report.config)
    want: dict[str, Any] = dict(plain.named_parameters())
    return [
        name
        for name, x in model.named_parameters()
        if not torch.equal(x.full_tensor(), want[name])  # type: ignore[attr-defined]
    ]


def test_uneven_shards_of_tensor_parallel_parts_are_filled_and_saved(tmp_path: Path) -> None:
    hf = write_model(tmp_path / "hf")
    assert on_ranks(3, through_fsdp2, hf, tmp_path / "out") == [[]] * 3
    found = intarsia.verify(tmp_path / "out", hf)
    assert found.compared
    assert not found.different

"""TransformerEngine's layers trained on FSDP2 x tensor parallel: what each of four ranks does."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from intarsia.live.transformer_engine import (
    model_state,
    optimizer_state,
    set_device_mesh,
    set_state,
)
from tests.live.transformer_engine_model import SEED, Model, train

MESHES = ((2, 2), (4, 1), (1, 4))


def parallel(seed: int, shape: tuple[int, int]) -> tuple[nn.Module, torch.optim.Optimizer]:
    SEED[0] = seed
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("fsdp", "tp"))
    model = Model(mesh["tp"].get_group())
    set_device_mesh(model, mesh["tp"])
    set_device_mesh(model, mesh["tp"])
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["fsdp"])
    fully_shard(model, mesh=mesh["fsdp"])
    set_device_mesh(model, mesh["tp"])
    return model, torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    state = {"model": model_state(model), "optim": optimizer_state(model, optimizer)}
    dcp.save(state, checkpoint_id=folder)


def train_and_move(folder: Path) -> None:
    """Train on 2x2 and save `saved`; load it on every mesh, and save what arrived as `at-FSDPxTP`."""
    model, optimizer = parallel(1, (2, 2))
    train(model, optimizer)
    save(model, optimizer, folder / "saved")
    state = {"model": model_state(model, True), "optim": optimizer_state(model, optimizer)}
    written = dcp.async_save(state, checkpoint_id=folder / "saved-with-extra")
    with torch.no_grad():
        for param in model.parameters():
            param.to_local().zero_()  # what is being written is no longer in use
    written.result()
    for number, (fsdp, tp) in enumerate(MESHES):
        model, optimizer = parallel(2 + number, (fsdp, tp))
        source = folder / ("saved-with-extra" if number % 2 else "saved")
        state = {
            "model": model_state(model, extra_state=True, held_by=source),
            "optim": optimizer_state(model, optimizer),
        }
        dcp.load(state, checkpoint_id=source)
        set_state(model, optimizer, state)
        assert hasattr(model.up, "taken") == bool(number % 2)
        save(model, optimizer, folder / f"at-{fsdp}x{tp}")
    SEED[0] = 1  # the batches of the first model
    train(model, optimizer, 1)
    save(model, optimizer, folder / "trained-on")

"""What four ranks find on models that are not trained."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, DistributedConfig

import intarsia
from intarsia.layout import Layout
from intarsia.placement import from_torch, local
from tests.distributed.moe_trainer import CASES, Case, batch, mesh_of, model, train_case
from tests.oracle.layouts import ids

PLACED = {
    "dp2_ep2": Case({"dp": 2, "ep": 2}),
    "axis2": Case({"dp": 2, "ep": 2}, {"expert_axis": 2}),
    "copies": Case({"dp": 2, "ep": 2}, {"expert_fsdp": False}),
    "ep2_tp2": Case({"ep": 2, "tp": 2}),
    "dp2_tp2": Case({"dp": 2, "tp": 2}),
    "hsdp": Case({"rep": 2, "ep": 2}, {"replicate": "rep"}),
}


def expected(param: DTensor, whole: torch.Tensor) -> torch.Tensor:
    """What this rank should hold of a tensor, by our reading of the parameter's placements."""
    mesh = param.device_mesh
    place = mesh.get_coordinate()
    assert place is not None
    cut = local(
        Layout.of("w", tuple(whole.shape)), mesh.mesh.shape, from_torch(param.placements), place
    )
    at = torch.from_numpy(np.ascontiguousarray(ids(cut, {"w": 0})))
    return whole.reshape(-1)[at]


def misplaced(made: torch.nn.Module, whole: dict[str, torch.Tensor]) -> list[str]:
    """Parameters whose local part, or whole, is not what their placements say."""
    wrong = []
    for name, p in made.named_parameters():
        same = isinstance(p, DTensor) and p.shape == whole[name].shape
        if same:
            same = p.full_tensor().equal(whole[name])
            same &= p.to_local().equal(expected(p, whole[name]))
        elif not isinstance(p, DTensor):
            same = p.equal(whole[name])
        if not same:
            wrong.append(name)
    return wrong


def state(made: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: x.detach().clone() for name, x in made.state_dict().items()}


def each_rank_holds_its_part(folder: Path) -> dict[str, list[str]]:
    found = {}
    for name, case in PLACED.items():
        whole = model()
        made = intarsia.parallelize(model(), mesh_of(case.mesh), **case.asked)
        found[name] = misplaced(made, state(whole))
    return found


def a_model_on_meta_is_filled_later(folder: Path) -> dict[str, Any]:
    """Parallelized without weights, then filled by each rank; the logits of the whole model."""
    whole, mesh = model(), mesh_of({"dp": 2, "ep": 2})
    with torch.device("meta"):
        made = intarsia.parallelize(AutoModelForCausalLM.from_config(whole.config), mesh)
    on_meta = all(isinstance(p, DTensor) and p.is_meta for p in made.parameters())
    made.to_empty(device="cpu")
    weights = state(whole)
    with torch.no_grad():
        for name, p in made.named_parameters():
            p.to_local().copy_(expected(p, weights[name]))
        for name, x in made.named_buffers():
            x.copy_(whole.get_buffer(name))
    ids = batch(0)
    close = torch.allclose(made(ids).logits, whole(ids).logits, atol=1e-5)
    return {"on meta": on_meta, "misplaced": misplaced(made, weights), "close": close}


def a_rank_with_zeros_is_refused(folder: Path) -> str:
    """Rank 2 is as a loader leaves it that expects rank 0 to broadcast."""
    made = model()
    if dist.get_rank() == 2:
        for p in made.parameters():
            p.data.zero_()
    return error_of(lambda: intarsia.parallelize(made, mesh_of({"dp": 2, "ep": 2})))


def experts_that_do_not_divide_are_refused(folder: Path) -> str:
    return error_of(lambda: intarsia.parallelize(model(num_experts=6), mesh_of({"ep": 4})))


def rank_0_is_broadcast_as_accelerate_1_13_did(folder: Path) -> dict[str, Any]:
    """The old procedure, re-enacted: every rank keeps what rank 0 holds of its own experts."""
    weights, mesh = state(model()), mesh_of({"ep": 4})
    ours = intarsia.parallelize(model(), mesh)
    theirs = intarsia.parallelize(model(), mesh)
    for name, p in theirs.named_parameters():
        if ".experts." in name:
            dist.broadcast(p.to_local(), src=0)
    first = theirs.get_parameter("model.layers.0.mlp.experts.down_proj").full_tensor()
    return {
        "ours": misplaced(ours, weights),
        "theirs": misplaced(theirs, weights),
        "experts": [
            int((weights["model.layers.0.mlp.experts.down_proj"] == e).flatten(1).all(1).nonzero())
            for e in first
        ],
        "loss": theirs(batch(0), labels=batch(0)).loss.item() > 0,
    }


def transformers_loads_for_a_broadcast(folder: Path) -> dict[str, Any]:
    """FOLDER/hf loaded under the settings of `accelerate launch --use_fsdp`: sharded, and whole."""
    mesh = mesh_of({"ep": 4})
    with for_a_broadcast():
        native = AutoModelForCausalLM.from_pretrained(
            folder / "hf", distributed_config=DistributedConfig(fsdp_size=4, ep_size=4)
        )
        whole = AutoModelForCausalLM.from_pretrained(folder / "hf")
    experts = native.get_parameter("model.layers.0.mlp.experts.down_proj")
    ours = intarsia.parallelize(AutoModelForCausalLM.from_pretrained(folder / "hf"), mesh)
    return {
        "native experts are zero": not experts.to_local().any().item(),
        "whole": error_of(lambda: intarsia.parallelize(whole, mesh)),
        "ours": misplaced(ours, state(model())),
    }


@contextmanager
def for_a_broadcast() -> Iterator[None]:
    names = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")
    os.environ.update(dict.fromkeys(names, "true"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except intarsia.IntarsiaError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def check(folder: Path, *names: str) -> None:
    """Write what every rank found in a check; a case is trained."""
    for name in names:
        if name in CASES:
            train_case(folder, name)
            continue
        mine = globals()[name](folder)
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, mine)
        if dist.get_rank() == 0:
            (folder / f"{name}.json").write_text(json.dumps(found))

"""Conversions to and from `fsdp_dtensor` for the tests, and checkpoints to start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import intarsia
from intarsia.checkpoint import Checkpoint
from intarsia.format import registry as formats
from intarsia.planning.manifest import Manifest
from tests import fixtures
from tests.checkpoints import normal_tensor, write_hf

FIXTURES = fixtures.FIXTURES / "megatron"
CASES = ("fd_dense_hsdp2x2", "fd_dense_tp2_fsdp2", "fd_gdn_fsdp2_split", "fd_moe_ep2_fsdp2")


def fixture(case: str) -> Path:
    """A checkpoint that Megatron wrote."""
    return fixtures.fixture("megatron", case)


def to_fsdp(
    source: Path, to: Path, mesh: str = "", *, spec: str = "te", **options: Any
) -> Manifest:
    """Convert to `fsdp_dtensor`."""
    intarsia.convert(source, to, to="fsdp_dtensor", mesh=mesh, megatron_spec=spec, **options)
    return formats.read_manifest(to)


def to_other(
    source: Path,
    to: Path,
    kind: str = "hf",
    mesh: str = "",
    *,
    config: Any = None,
    drop: bool = False,
) -> Manifest:
    """Convert to `hf` or `dcp`, with or without the optimizer's state."""
    optimizer = "drop" if drop else "keep"
    intarsia.convert(source, to, to=kind, mesh=mesh, config=config, optimizer=optimizer)
    return formats.read_manifest(to)


def to_torch_dist(source: Path, to: Path, mesh: str = "", *, config: Any = None) -> Manifest:
    """Convert to `torch_dist`, where the counters of steps are part of the parameter groups."""
    intarsia.convert(source, to, to="torch_dist", mesh=mesh, config=config)
    return formats.read_manifest(to)


def logical_tensors(path: Path, config: Any = None) -> dict[str, torch.Tensor]:
    """Every logical tensor of a checkpoint."""
    with Checkpoint(formats.read_manifest(path, config)) as ck:
        return {name: ck[name][...].clone() for name in ck}


def hf_with_optimizer(folder: Path, model: Mapping[str, torch.Tensor], config: Any) -> Path:
    """A Hugging Face folder with moments, fp32 masters that are not bf16 numbers, and steps."""
    write_hf(folder, model, config)
    state: dict[str, torch.Tensor] = {}
    for k, (name, x) in enumerate(model.items()):
        moments = [normal_tensor(tuple(x.shape), torch.float32, 2 * k + i) for i in (0, 1)]
        state[f"optimizer.master.{name}"] = x.float() * (1 + 2**-12)
        state[f"optimizer.exp_avg.{name}"] = moments[0]
        state[f"optimizer.exp_avg_sq.{name}"] = moments[1].square()
        state[f"optimizer.step.{name}"] = torch.tensor(7.0)
    (folder / "optimizer").mkdir()
    save_file(state, folder / "optimizer" / "model.safetensors", {"format": "pt"})
    return folder


def truths(case: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The bf16 weights and the optimizer state that a fixture was made from."""
    return (
        load_file(case / "hf_truth" / "model.safetensors"),
        load_file(case / "hf_truth_optimizer.safetensors"),
    )

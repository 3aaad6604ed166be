"""Optimizer state that we write, loaded by Megatron-core's own distributed optimizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import intarsia
from tests.checkpoints import write_dcp
from tests.parity.megatron_writing import write_torch_dist
from tests.parity.test_megatron_core_loads import Model, iteration, launch, make
from tests.parity.test_megatron_version import source_of

pytestmark = [pytest.mark.slow, pytest.mark.megatron]

FINDS_GROUPS_BY_RATES = "_param_group_override_keys" in source_of("optimizer/optimizer.py")
"""Whether the installed Megatron-core compares `max_lr` too."""

MESHES = [
    ("qwen3", 2, (1, 1, 1), "tp=2,pp=2"),
    ("qwen3", 4, (2, 1, 1), ""),
    ("qwen3_moe", 4, (2, 2, 1), "tp=4,ep=1"),
    ("qwen3_moe", 4, (2, 1, 2), "tp=2,ep=4"),
    ("qwen3_moe", 2, (1, 1, 2), "ep=2"),
]
"""Families, ranks with their tp, pp and ep, and the mesh that the checkpoint is written for."""


def trained_by_torch(model: Model, folder: Path) -> Path:
    """What torch would save of such a model: settings by group, steps and moments by parameter."""
    weights = load_file(model.folder / "model.safetensors")
    mains = {name: x.float() * (1 + 2**-12) for name, x in weights.items()}
    state = {
        name: {
            "step": torch.tensor(3.0),
            "exp_avg": x * 0.25,
            "exp_avg_sq": x * x,
            "master": x,
        }
        for name, x in mains.items()
    }
    settings = {"lr": 0.002, "betas": (0.8, 0.95), "eps": 1e-7}
    groups = [
        {**settings, "weight_decay": 0.1, "params": [n for n, x in weights.items() if x.ndim > 1]},
        {**settings, "weight_decay": 0.0, "params": [n for n, x in weights.items() if x.ndim < 2]},
    ]
    return write_dcp(folder, {**weights, "optimizer": {"state": state, "param_groups": groups}})


def resumed(
    tmp_path: Path, model: Model, checkpoint: Path, ranks: int, sizes: tuple[int, ...], bucket: int
) -> dict[str, Any]:
    words = (iteration(checkpoint), model.folder / "config.json", tmp_path / "out", bucket, *sizes)
    launch("tests.parity.megatron_resuming", ranks, *words)
    found: dict[str, Any] = json.loads((tmp_path / "out").read_text())
    return found


@pytest.mark.parametrize(("kind", "ranks", "sizes", "mesh"), MESHES)
def test_what_torch_trained_resumes_in_megatron(
    kind: str, ranks: int, sizes: tuple[int, ...], mesh: str, tmp_path: Path
) -> None:
    model = make(tmp_path / "hf", kind, torch.bfloat16, vocab_size=100)
    src = trained_by_torch(model, tmp_path / "dcp")
    intarsia.convert(
        src,
        tmp_path / "td",
        to="torch_dist",
        mesh=mesh,
        config=model.config,
        megatron_spec="local",
        megatron_lr=0.001 if FINDS_GROUPS_BY_RATES else None,
    )
    found = resumed(tmp_path, model, tmp_path / "td", ranks, sizes, 0)
    assert found["elements"] > 0
    for group in found["groups"]:
        assert (group["lr"], group["betas"], group["eps"]) == (0.002, [0.8, 0.95], 1e-7)
        assert group["weight_decay"] == (0.1 if group["wd_mult"] else 0.0)
        if FINDS_GROUPS_BY_RATES:
            assert (group["max_lr"], group["min_lr"]) == (0.001, None)


@pytest.mark.parametrize(
    ("sharding", "saved", "mesh", "sizes"),
    [
        ("dp_reshardable", (2, 1, 2), "tp=1,pp=2,ep=2", (1, 2, 2)),
        ("dp_reshardable", (1, 2, 2), "tp=2", (2, 2, 1)),
        ("fully_reshardable", (2, 1, 1), "ep=4", (1, 1, 4)),
    ],
)
def test_what_megatron_saved_resumes_on_another_mesh(
    sharding: str, saved: tuple[int, ...], mesh: str, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    """Even where Megatron itself could not: buckets change their tensor and pipeline parallelism."""
    model = make(tmp_path / "hf", "qwen3_moe", torch.bfloat16, vocab_size=100)
    write_torch_dist(model.folder, tmp_path / "td", "", spec="local")
    words = (
        iteration(tmp_path / "td"),
        model.folder / "config.json",
        tmp_path / "run/iter_0000007",
    )
    launch("tests.parity.megatron_training", 4, *words, sharding, 0, *saved)
    intarsia.convert(
        tmp_path / "run",
        tmp_path / "new",
        to="torch_dist",
        mesh=mesh,
        config=model.config,
        megatron_spec="local",
        megatron_lr=0.001 if FINDS_GROUPS_BY_RATES else None,
    )
    found = resumed(tmp_path, model, tmp_path / "new", 4, sizes, 3000)
    assert found["elements"] > 0
    assert {group["lr"] for group in found["groups"]} == {0.001}

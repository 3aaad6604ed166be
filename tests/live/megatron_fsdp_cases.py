"""Conversions to and from `fsdp_dtensor` for the tests, and checkpoints to start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from intarsia import conversion, formats
from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import dtype_named
from intarsia.family import table_for
from intarsia.format.base import WriteOptions
from intarsia.format.dcp import spell
from intarsia.format.fsdp_dtensor import zero_centered
from intarsia.format.megatron_common import COMMON_OBJECT, archive
from intarsia.format.megatron_fsdp_entries import common_of
from intarsia.format.megatron_fsdp_write import check_equal, fsdp_dtensor_targets
from intarsia.format.megatron_keys import torch_dist_rows
from intarsia.layout import Layout
from intarsia.mesh import Box, Mesh, Rule
from intarsia.planning.manifest import Manifest, Target
from intarsia.planning.planner import make_plan
from intarsia.run.budget import Budget
from intarsia.targets import Wanted, Wish, state_rows
from tests.checkpoints import ROOT, bits, normal_tensor, write_hf

FIXTURES = ROOT.parent / "shared" / "fixtures" / "megatron"
CASES = ("fd_dense_hsdp2x2", "fd_dense_tp2_fsdp2", "fd_gdn_fsdp2_split", "fd_moe_ep2_fsdp2")


def fixture(case: str) -> Path:
    """A checkpoint that Megatron-FSDP wrote; the test is skipped where it is absent."""
    path = FIXTURES / case
    if not path.is_dir():
        pytest.skip(f"the checkpoint {path} is absent")
    return path


def to_fsdp(
    source: Path,
    to: Path,
    mesh: str = "",
    *,
    config: Any = None,
    spec: str = "te",
    optimizer: str = "keep",
    dtype: str | None = None,
) -> Manifest:
    """Convert to `fsdp_dtensor`; the plan must be proven."""
    src, where = formats.read_manifest(source, config), Mesh.parse(mesh)
    found = fsdp_dtensor_targets(
        src,
        table_for(src.config, zero_centered=zero_centered(src)),
        where,
        spec=spec,
        optimizer=optimizer,
        dtype=dtype_named(dtype) if dtype else None,
    )
    if found.equal:
        with Checkpoint(src) as ck:
            check_equal(lambda name: bits(ck[name][...]), found.equal)
    wanted = Wanted(tuple(found.targets), found.drop, optimizer == "keep", ())
    return _run(src, Wish("fsdp_dtensor", where), wanted, to)


def to_other(
    source: Path,
    to: Path,
    kind: str = "hf",
    mesh: str = "",
    *,
    config: Any = None,
    drop: bool = False,
) -> Manifest:
    """Convert to `hf` or `dcp`, every logical tensor under its own name."""
    src, where = formats.read_manifest(source, config), Mesh.parse(mesh)
    left = {n: "dropped" for n in src.logical if drop and n.startswith("optimizer.")}
    targets = []
    for name, x in src.logical.items():
        if name not in left:
            rule = Rule(tp=0) if len(x.shape) > 1 else Rule()
            boxes = where.boxes(x.shape, rule) if kind == "dcp" else (Box.whole(x.shape),)
            on_disk = spell(name) if kind == "dcp" else name
            targets.append(Target(on_disk, x.dtype, Layout.of(name, x.shape), boxes, rule))
    wanted = Wanted(tuple(targets), left, not drop, ())
    return _run(src, Wish(kind, where), wanted, to)


def to_torch_dist(source: Path, to: Path, mesh: str = "", *, config: Any = None) -> Manifest:
    """Convert to `torch_dist`, where the counters of steps are part of the parameter groups."""
    src, where = formats.read_manifest(source, config), Mesh.parse(mesh)
    table = table_for(src.config)
    assert table is not None
    model = [r for r in torch_dist_rows(table, where) if src.logical.keys() >= {*r.layout.tensors}]
    left = {n: "in the parameter groups" for n in src.logical if n.startswith("optimizer.step.")}
    targets = [
        Target(
            row.name,
            src.logical[row.layout.tensors[0]].dtype,
            row.layout,
            where.boxes(row.layout.shape, row.rule),
            row.rule,
            row.shift,
        )
        for row in (*model, *state_rows(model, src.logical.keys() - left.keys()))
    ]
    wish = Wish("torch_dist", where)
    return _run(src, wish, Wanted(tuple(targets), left, True, ()), to)


def _run(src: Manifest, wish: Wish, wanted: Wanted, to: Path) -> Manifest:
    budget = Budget.of()
    plan = make_plan(
        src,
        wanted.targets,
        to=wish.to,
        mesh=wish.mesh,
        peak_memory_bytes=budget.peak_bytes,
        drop=dict(wanted.drop),
    )
    plan.check()
    job = conversion.Job(src, wish, wanted, plan, budget, 5 << 30, src.config)
    if wish.to == "torch_dist" and COMMON_OBJECT not in src.entries:
        entries = job._entries()
        entries[COMMON_OBJECT] = archive([common_of(entries)])
        options = WriteOptions(wish.mesh, entries=entries, config=src.config)
        arrangement = formats.format_named(wish.to).arrange(wanted.targets, options)
        object.__setattr__(job, "arrange", lambda: arrangement)
    conversion.carry_out(job, to)
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

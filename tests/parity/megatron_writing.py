"""Conversion to `torch_dist` for the tests: targets from the family's Megatron rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intarsia import conversion, formats
from intarsia.format.base import WriteOptions
from intarsia.format.megatron_keys import torch_dist_rows
from intarsia.format.megatron_optimizer import state_rows
from intarsia.format.torch_dist import TorchDist
from intarsia.family import table_for
from intarsia.mesh import Mesh
from intarsia.planning.manifest import Manifest, Target
from intarsia.planning.planner import make_plan
from intarsia.run.budget import Budget
from intarsia.targets import Wanted, Wish

formats.FORMATS = {"torch_dist": TorchDist(), **formats.FORMATS}  # type: ignore[misc]


@dataclass(frozen=True)
class Options(WriteOptions):
    config: Mapping[str, Any] | None = field(default=None)


def read(path: Path, config: Mapping[str, Any] | None = None) -> Manifest:
    return formats.read_manifest(path, config)


def write_torch_dist(
    source: Path, to: Path, mesh: str = "", *, config: Any = None, spec: str = "te", pad_to: int | None = None
) -> Manifest:
    src = read(source, config)
    where, table = Mesh.parse(mesh), table_for(src.config)
    assert table is not None
    rows = [r for r in torch_dist_rows(table, where, spec=spec, pad_to=pad_to) if {*r.layout.tensors} <= {*src.logical}]
    rows += state_rows(rows, src.logical)
    targets = tuple(
        Target(r.name, src.logical[r.layout.tensors[0]].dtype, r.layout, where.boxes(r.layout.shape, r.rule), r.rule, r.shift)
        for r in rows
    )
    budget = Budget.of()
    wish = Wish("torch_dist", where)
    wanted = Wanted(targets, {}, True, ())
    plan = make_plan(src, targets, to="torch_dist", mesh=where, peak_memory_bytes=budget.peak_bytes)
    plan.check()
    job = conversion.Job(src, wish, wanted, plan, budget, 5 << 30, src.config)
    options = Options(where, entries=job._entries(), config=src.config)
    arrangement = TorchDist().arrange(targets, options)
    object.__setattr__(job, "arrange", lambda: arrangement)
    conversion.carry_out(job, to)
    return src

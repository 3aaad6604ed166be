"""What a Python program calls to convert: plan, convert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from intarsia.collector import seldom
from intarsia.conversion.job import Job, prepare
from intarsia.conversion.report import Report
from intarsia.dtypes import dtype_named
from intarsia.errors import check_flags
from intarsia.format.optimizer_state.learning_rates import Rates
from intarsia.format.request import Request
from intarsia.mesh import Mesh
from intarsia.options import (
    ConfigLike,
    MeshLike,
    Options,
    PathLike,
    SectionLike,
    with_options_explained,
)
from intarsia.planning.plan import Plan
from intarsia.quantity import bytes_in
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress
from intarsia.run.ranks.crew import crew


def job(src: PathLike, options: Options) -> Job:
    """A conversion, planned and proven, not yet run."""
    check_flags(digests=options.digests)
    request = Request(
        to=options.to,
        mesh=Mesh.parse(options.mesh),
        dialect=options.dialect,
        dtype=None if options.dtype is None else dtype_named(options.dtype),
        optimizer=options.optimizer,
        spec=options.megatron_spec,
        rates=Rates.parse(options.megatron_lr),
    )
    made = prepare(
        src,
        request,
        Budget.of(options.memory, options.workers),
        max_shard_bytes=bytes_in(options.max_shard_size),
        config=options.config,
        section=options.section,
    )
    return replace(made, digests=options.digests)


def _among(arguments: Mapping[str, Any]) -> Options:
    """The options among the arguments of a call."""
    return Options(**{f.name: arguments[f.name] for f in fields(Options)})


@with_options_explained
@seldom()
def plan(
    src: PathLike,
    *,
    to: str,
    mesh: MeshLike = None,
    dialect: str | None = None,
    megatron_spec: str = "te",
    megatron_lr: str | float | None = None,
    dtype: str | None = None,
    memory: str | int | None = None,
    workers: int | None = None,
    max_shard_size: str | int = "5GB",
    optimizer: str = "keep",
    config: ConfigLike = None,
    section: SectionLike = None,
    digests: bool = True,
) -> Plan:
    """What converting would do: the proof, the bytes, the memory."""
    return job(src, _among(locals())).plan


@with_options_explained
@seldom()
def convert(
    src: PathLike,
    dst: PathLike,
    *,
    to: str,
    mesh: MeshLike = None,
    dialect: str | None = None,
    megatron_spec: str = "te",
    megatron_lr: str | float | None = None,
    dtype: str | None = None,
    memory: str | int | None = None,
    workers: int | None = None,
    max_shard_size: str | int = "5GB",
    optimizer: str = "keep",
    config: ConfigLike = None,
    section: SectionLike = None,
    digests: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    alone: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Convert a checkpoint; the destination appears when it is whole, or not at all.

    With `resume`, what an earlier run of the same job had written before it was killed is kept;
    with `overwrite`, a checkpoint in the place of the destination is replaced.  The ranks of a
    `torchrun` job share the work, unless one is to do it `alone`.  `progress` is called with the
    bytes that are written and all that will be.
    """
    from intarsia.conversion.running import carry_out  # a plan does without

    options = _among(locals())
    check_flags(resume=resume, overwrite=overwrite, alone=alone)
    with crew(alone=alone) as team:
        with team.together():
            planned = job(src, options)
        return carry_out(
            planned, dst, overwrite=overwrite, resume=resume, progress=progress, team=team
        )

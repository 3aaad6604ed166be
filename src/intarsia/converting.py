"""What a Python program calls to convert: plan, convert."""

from __future__ import annotations

from dataclasses import replace

from intarsia.collector import seldom
from intarsia.conversion.job import Job, prepare
from intarsia.conversion.running import Report, carry_out
from intarsia.dtypes import dtype_named
from intarsia.format.optimizer_state.learning_rates import Rates
from intarsia.format.request import Request
from intarsia.mesh import Mesh
from intarsia.options import ConfigLike, MeshLike, Options, PathLike, SectionLike, explained
from intarsia.planning.plan import Plan
from intarsia.quantity import bytes_in
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress
from intarsia.run.ranks.crew import crew


def job(src: PathLike, options: Options) -> Job:
    """A conversion, planned and proven, not yet run."""
    request = Request(
        to=options.to,
        mesh=Mesh.parse(options.mesh),
        dialect=options.dialect,
        dtype=dtype_named(options.dtype) if options.dtype else None,
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


@explained
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
    options = Options(
        to=to,
        mesh=mesh,
        dialect=dialect,
        megatron_spec=megatron_spec,
        megatron_lr=megatron_lr,
        dtype=dtype,
        memory=memory,
        workers=workers,
        max_shard_size=max_shard_size,
        optimizer=optimizer,
        config=config,
        section=section,
        digests=digests,
    )
    return job(src, options).plan


@explained
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
    options = Options(
        to=to,
        mesh=mesh,
        dialect=dialect,
        megatron_spec=megatron_spec,
        megatron_lr=megatron_lr,
        dtype=dtype,
        memory=memory,
        workers=workers,
        max_shard_size=max_shard_size,
        optimizer=optimizer,
        config=config,
        section=section,
        digests=digests,
    )
    with crew(alone=alone) as team:
        with team.together():
            planned = job(src, options)
        return carry_out(
            planned, dst, overwrite=overwrite, resume=resume, progress=progress, team=team
        )

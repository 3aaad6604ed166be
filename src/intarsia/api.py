"""What a Python program calls: open, plan, convert, verify, digest, diff."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, overload

from intarsia.checkpoint import Checkpoint
from intarsia.conversion.job import Job, prepare
from intarsia.conversion.running import Report, carry_out
from intarsia.dtypes import dtype_named
from intarsia.errors import ForeignNamesError, SectionError
from intarsia.format.optimizer_state.learning_rates import Rates
from intarsia.format.registry import read_manifest
from intarsia.format.request import Request
from intarsia.mesh import Mesh
from intarsia.options import ConfigLike, MeshLike, Options, PathLike, SectionLike, explained
from intarsia.planning.inventory import unread_sections
from intarsia.planning.plan import Plan
from intarsia.quantity import bytes_in
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress
from intarsia.run.ranks.crew import Crew, agree, crew
from intarsia.store.lookup import given
from intarsia.store.once import reading_once
from intarsia.store.replaced import unreplaced
from intarsia.store.stamp import Stamp

if TYPE_CHECKING:
    from intarsia.checking.alone.soundness import Soundness
    from intarsia.checking.digests.digest import Digests
    from intarsia.checking.pair.change import Changes
    from intarsia.checking.pair.compare import Comparison


def open(path: PathLike, config: ConfigLike = None, section: SectionLike = None) -> Checkpoint:
    """Open a checkpoint of any format; only its headers are read.

    `section` names the model where a checkpoint holds several.
    """
    return Checkpoint(read_manifest(path, config, section=section))


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


@overload
def verify(
    a: PathLike,
    b: None = None,
    *,
    config: ConfigLike = ...,
    section: SectionLike = ...,
    memory: str | int | None = ...,
    workers: int | None = ...,
    progress: Progress | None = ...,
) -> Soundness: ...


@overload
def verify(
    a: PathLike,
    b: PathLike,
    *,
    config: ConfigLike = ...,
    section: SectionLike = ...,
    memory: str | int | None = ...,
    workers: int | None = ...,
    progress: Progress | None = ...,
) -> Comparison: ...


def verify(
    a: PathLike,
    b: PathLike | None = None,
    *,
    config: ConfigLike = None,
    section: SectionLike = None,
    memory: str | int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Soundness | Comparison:
    """Whether two checkpoints hold the same weights, bit by bit, whatever their formats.

    Given one, whether it is sound: whole, readable, true to its checksums, free of known faults.
    `section` names the model where A holds several; it is B's too where B holds several.
    """
    if b is None:
        from intarsia.checking.alone.soundness import examine

        return examine(a, config, Budget.of(memory, workers), progress, section)
    from intarsia.checking.pair.compare import compare

    with reading_once(), unreplaced(given(a), given(b)) as check:
        left, right = open_pair(a, b, config, section)
        with left, right:
            found = compare(left, right, Budget.of(memory, workers), progress)
            unread = (x for side in (left, right) for x in unread_sections(side.manifest.inventory))
        if not found:
            check()
        return replace(found, notes=(*found.notes, *unread))


def digest(
    path: PathLike,
    *,
    secure: bool = False,
    config: ConfigLike = None,
    section: SectionLike = None,
    memory: str | int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    alone: bool = False,
) -> Digests:
    """The digest of each logical tensor: equal for every format and layout of the same weights.

    The ranks of a `torchrun` job share the work, unless one is to do it `alone`.
    """
    with crew(alone=alone) as team:
        budget = Budget.of(memory, workers)
        return digest_with(team, path, config, budget, progress, secure=secure, section=section)


def digest_with(
    team: Crew,
    path: PathLike,
    config: ConfigLike,
    budget: Budget,
    progress: Progress | None = None,
    *,
    secure: bool = False,
    section: SectionLike = None,
) -> Digests:
    """The digests of a checkpoint, by ranks that read the same one."""
    from intarsia.checking.digests.digest import digests_of, objects_of

    with team.together():
        checkpoint = open(path, config, section)
    with checkpoint:
        facts = {f"source file {f}": str(Stamp(*s)) for f, s in checkpoint.manifest.stamps.items()}
        agree(team, facts | {"--secure": str(secure), "--memory, --workers": str(budget)})
        found = digests_of(checkpoint, budget, progress, secure=secure, team=team)
        return replace(found, objects=objects_of(checkpoint.manifest, budget))


def diff(
    a: PathLike,
    b: PathLike,
    *,
    config: ConfigLike = None,
    section: SectionLike = None,
    memory: str | int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Changes:
    """How much each tensor changed between two checkpoints of one model, the furthest first."""
    from intarsia.checking.pair.change import changes

    left, right = open_pair(a, b, config, section)
    with left, right:
        return changes(left, right, Budget.of(memory, workers), progress)


@reading_once()
def open_pair(
    a: PathLike, b: PathLike, config: ConfigLike, section: SectionLike = None
) -> tuple[Checkpoint, Checkpoint]:
    """Two checkpoints, one lending the other its model configuration where that has none of its own.

    A section is A's, and B's too where B has several models.
    """
    left, right = open(a, config, section), _other(b, config, section)
    with suppress(ForeignNamesError):  # another model, compared name by name
        if _lacks_config(left) and not _lacks_config(right):
            left = open(a, right.config, section)
        elif _lacks_config(right) and not _lacks_config(left):
            right = _other(b, left.config, section)
    return left, right


def _other(path: PathLike, config: ConfigLike, section: SectionLike) -> Checkpoint:
    try:
        return open(path, config)
    except SectionError:
        if section is None:
            raise
        return open(path, config, section)


def _lacks_config(checkpoint: Checkpoint) -> bool:
    return checkpoint.config is None or checkpoint.manifest.config_made

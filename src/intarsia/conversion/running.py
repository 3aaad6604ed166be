"""Running a job: claim the destination, move the bytes, attest them, commit."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from intarsia.checking.digests.attest import Work, attest, digests_file
from intarsia.collector import paused
from intarsia.conversion.identity import job_facts
from intarsia.conversion.job import Job
from intarsia.conversion.replacing import check_replaceable, marks_beside
from intarsia.conversion.report import Report
from intarsia.conversion.resuming import begin, keep_what_is_proven
from intarsia.errors import Interrupted
from intarsia.format.base import Arrangement
from intarsia.format.folder.side_files import check_sides, with_dtype
from intarsia.format.registry import folder_of, format_named, root_of
from intarsia.frozen import frozen
from intarsia.layout import Layout
from intarsia.opened.masters import check_rounded
from intarsia.opened.padding import TrainedPadding, not_carried, trained_padding
from intarsia.planning.proof import Proven
from intarsia.run.execute import Execution, cut_steps
from intarsia.run.journal.keeping import Journal
from intarsia.run.losses import Changed, Losses, changed_tensors, summary
from intarsia.run.progress import Progress, counting
from intarsia.run.ranks.crew import Crew, agree
from intarsia.run.ranks.shares import share_of
from intarsia.run.source import Source
from intarsia.run.sums.hashing import merged_sums
from intarsia.run.windows.tally import Sums, Tally
from intarsia.store.address import named
from intarsia.store.reading.folder import read_file
from intarsia.store.reading.lookup import exists, given, real
from intarsia.store.writing.sources import check_sources
from intarsia.store.writing.staging import Staging


def carry_out(
    job: Job,
    destination: str | PurePath,
    *,
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
    team: Crew | None = None,
) -> Report:
    """Run a job; the destination appears when it is whole, or not at all.

    With `resume`, what an earlier run of the same job had written before it was killed is kept.
    """
    started = time.perf_counter()
    where, team = given(destination), team or Crew()
    changed, said = tuple[Changed, ...](), list[str]()
    staging = Staging(where, overwrite=overwrite, judge=check_replaceable, alone=team.size == 1)
    sources = [job.src.path, *job.stamps.files]
    with team.together():
        if team.rank == 0:
            staging.transaction.check_place()
        check_sources(where, sources, overwrite=overwrite)
        proofs = job.plan.check()
        check_sides(job.src.sides)
        if team.rank == 0 and not resume:
            staging.check()
    try:
        job, arrangement, facts = _agreed(job, staging, team, overwrite=overwrite, resume=resume)
        journal = Journal(staging, job.wanted.targets)
        start = _begun(job, arrangement, journal, facts, team, resume=resume)
        if not start.whole:
            with team.together():
                staging.await_folder(start.folder)
            moved = _move(job, proofs, arrangement, journal, team, progress)
            changed, said = _committed(job, arrangement, staging, team, *moved)
    except KeyboardInterrupt as stop:
        interrupted = Interrupted(staging.committed, *stop.args)
        try:
            keep_what_is_proven(job, staging, interrupted)
        except KeyboardInterrupt:
            staging.abandon(keep=True)
            if exists(staging.folder):
                interrupted.add_note(f"{staging.folder} is left: run again with --resume")
        raise interrupted from stop
    except BaseException as error:
        keep_what_is_proven(job, staging, error)
        raise
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = time.perf_counter() - started
    notes = [*start.notes, *not_carried(start.padding), *arrangement.notes, *said]
    return Report(job.plan, str(where), seconds, peak, tuple(notes), changed, start.padding)


@frozen
class _Start:
    """What the first rank found when it claimed the destination."""

    whole: bool
    notes: list[str]
    folder: int
    padding: tuple[TrainedPadding, ...]


def _agreed(
    job: Job, staging: Staging, team: Crew, *, overwrite: bool, resume: bool
) -> tuple[Job, Arrangement, dict[str, str]]:
    """The job as it will run and how it is laid out, once every rank has the same one."""
    with team.together(), paused():
        arrangement = job.arrange()
        facts = job_facts(job, arrangement)
        called = {
            "destination": str(real(staging.destination)),
            "--overwrite": str(overwrite),
            "--resume": str(resume),
            "--digests": str(job.digests),
            "--memory, --workers": str(job.budget),
        }
    agree(team, facts | called)
    return replace(job, budget=job.budget.less(arrangement.held_bytes)), arrangement, facts


def _begun(
    job: Job,
    arrangement: Arrangement,
    journal: Journal,
    facts: dict[str, str],
    team: Crew,
    *,
    resume: bool,
) -> _Start:
    """Check the numbers that a plan takes on trust, and claim the destination."""
    with team.together():
        rounded = _whole(job, job.wanted.rounded[team.rank :: team.size])
        check_rounded(job.src, rounded, job.budget, hint=_which_wins(job))
    with team.together() as shared:
        if team.rank == 0:
            _check_equal(job)
            used = {name for t in job.wanted.targets for name in t.layout.tensors}
            padding = trained_padding(job.src, job.budget, used)
            staging = journal.staging
            staging.transaction.keep_private(map(named, job.stamps.files), root_of(job.src))
            whole, notes = begin(job, arrangement, journal, facts, resume=resume)
            folder = 0 if whole else staging.folder_number
            shared.value = _Start(whole, notes, folder, padding)
    start: _Start = shared.values[0]
    return start


def _committed(
    job: Job,
    arrangement: Arrangement,
    staging: Staging,
    team: Crew,
    parts: list[Any],
    losses: Losses,
    sums: Sums,
) -> tuple[tuple[Changed, ...], list[str]]:
    """Attest what was moved and commit it: what changed on the way, and what to say."""
    changed = changed_tensors(losses, {t.name: t for t in job.wanted.targets})
    notes = [*summary(changed)]
    with team.together():
        if team.rank == 0:
            _close(job, staging, arrangement, parts)
            if job.digests:
                _attest(job, staging, arrangement, sums, losses)
            job.stamps.check()
            notes += staging.commit()
    return changed, notes


def _whole(job: Job, names: Iterable[str]) -> list[Layout]:
    return [Layout.of(name, job.src.logical[name].shape) for name in names]


def _which_wins(job: Job) -> str:
    """How a user says whether weights or main weights are right."""
    stored = {job.src.logical[name].dtype.torch for name in job.wanted.rounded[:1]}
    return (
        "if the weights are right, take only the weights with --optimizer drop --dtype"
        f" {''.join(stored)}; if the main weights are right, convert the checkpoint that they"
        " were saved with"
    )


def _check_equal(job: Job) -> None:
    """Raise where tensors differ and only one of them is written."""
    if not job.wanted.equal:
        return
    from intarsia.checkpoint import Checkpoint
    from intarsia.conversion.equal_tensors import check_equal

    with Checkpoint(job.src) as checkpoint:
        check_equal(checkpoint, job.wanted.equal, job.budget.window_bytes)


def _move(
    job: Job,
    proofs: Sequence[Proven],
    arrangement: Arrangement,
    journal: Journal,
    team: Crew,
    progress: Progress | None,
) -> tuple[list[Any], Losses, Sums]:
    """Every rank's share of the steps: the parts that all wrote, what numbers lost, the sums."""
    advance = counting(progress, job.plan.write_bytes)
    with team.together():
        kept = journal.join(team.rank)
        held = folder_of(job.src)
    with team.together() as shared, held as folder, journal:
        advance(kept.nbytes)
        source = Source(job.src, format_named(job.src.format), folder)
        sizes = {x.name: x.size for x in job.src.logical.values()}
        tally = Tally(sizes if job.digests else {}, job.budget.stretch_bytes)
        staging = journal.staging
        run = Execution(source, arrangement, staging, job.budget, advance, journal.record, tally)
        steps = cut_steps(proofs, arrangement, job.budget, kept.ranges)
        parts = run.run(share_of(steps, arrangement, team.rank, team.size))
        if team.rank != 0:
            staging.sync()
        job.stamps.check()
        shared.value = parts, source.losses, run.sums
    losses = sum((counts for _, counts, _ in shared.values), kept.losses)
    sums = merged_sums([kept.sums, *(sums for _, _, sums in shared.values)])
    fresh = [part for parts, _, _ in shared.values for part in parts]
    return kept.unfinished(arrangement) + fresh, losses, sums


def _close(job: Job, staging: Staging, arrangement: Arrangement, parts: list[Any]) -> None:
    with folder_of(job.src) as folder:
        source = Source(job.src, format_named(job.src.format), folder)
        run = Execution(source, arrangement, staging, job.budget)
        run.finish(parts, {t.name: t for t in job.wanted.targets})
    for side in job.src.sides:
        if side.name != "config.json" or job.request.dtype is None:
            staging.copy_in(side.name, named(side.path))
        else:
            text = read_file(named(side.path)).decode(errors="surrogateescape")
            text = with_dtype(text, job.request.dtype)
            staging.write_small(side.name, text.encode(errors="surrogateescape"))
    if job.config is not None and not any(s.name == "config.json" for s in job.src.sides):
        text = json.dumps(job.config, indent=2) + "\n"
        if job.request.dtype is not None:
            text = with_dtype(text, job.request.dtype)
        staging.write_small("config.json", text.encode())
    for file, at, data in arrangement.fixed:
        staging.write(file, at, [data])
    for file, data in arrangement.closing.items():
        staging.write_small(file, data)
    staging.remove(digests_file(arrangement))
    staging.check_own()


def _attest(
    job: Job, staging: Staging, arrangement: Arrangement, sums: Sums, losses: Losses
) -> None:
    """Write the digests of what was written, once they are what the source's promise."""
    with paused():
        writer = format_named(job.request.to)
        section = job.src.section if writer.keeps_keys and job.src.saved else ()
        written = writer.read(staging.folder, job.config, section=section)
    work = Work(job.wanted.targets, arrangement, sums, {name for name, _ in losses})
    found = attest(written, work, job.src, job.budget)
    known = {*arrangement.files, *arrangement.closing, digests_file(arrangement)}
    files = marks_beside(staging.folder, known)
    found = replace(found, files=files, section=section)
    staging.write_small(digests_file(arrangement), found.as_bytes())

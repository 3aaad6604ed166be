"""Saving a live model: every rank writes the boxes that it alone is to write, and one rank commits.

A box that several ranks hold is written once.  Where a DTensor says that they hold the same, that
is the proof; where only the name says so (plain tensors, equal tensors on several meshes), every
rank's checksum must agree, or nothing is committed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Any

from intarsia.conversion.replacing import check_replaceable
from intarsia.errors import CoverageError, IntarsiaError, add_hint
from intarsia.format.base import Arrangement, Slot
from intarsia.format.folder.side_files import DIGESTS
from intarsia.live.entries import EXTRA
from intarsia.live.loading.filling.fill import as_bytes
from intarsia.live.report import Saved
from intarsia.live.saving.digests import SaveDigests, Sums
from intarsia.live.saving.exchange import RankTask, Statement, heard
from intarsia.live.saving.latest import name_last
from intarsia.live.saving.parts import HeldPart
from intarsia.live.saving.plan import Outline, SavePlan, config_text
from intarsia.live.saving.replicas import Key, check_replicas
from intarsia.live.saving.snapshot import Snapshot
from intarsia.run.progress import Progress
from intarsia.run.ranks.crew import Crew, check_alike
from intarsia.run.sharing import share_out
from intarsia.run.sums.checksum import crc32
from intarsia.run.sums.hashing import merged_sums
from intarsia.store.address import named
from intarsia.store.reading.lookup import real
from intarsia.store.writing.staging import Staging


def write(
    path: str | PurePath,
    what: Snapshot,
    team: Crew,
    *,
    overwrite: bool = False,
    latest: bool | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Saved:
    """Write a snapshot with the other ranks; the checkpoint appears when it is whole, or not at all."""
    started = time.perf_counter()
    staging = Staging(
        named(path),
        overwrite=overwrite,
        judge=check_replaceable,
        option="overwrite=True",
        alone=team.size == 1,
    )
    with team.together() as statements:
        if team.rank == 0:
            staging.check()
        parts = _own_parts(what, team)
        statement = _statement(what, parts, team)
        statements.value = statement.digest, {"destination": str(real(staging.destination))}
    check_alike([facts for _, facts in statements.values])
    statements_of = [digest for digest, _ in statements.values]
    try:
        with team.together(to_first=True) as said:
            said.value = statement.said(statements_of, team.rank)
        plan, outline, folder = _planned(staging, said.values, statements_of, team)
        task = team.scatter(plan.tasks if plan is not None else ())
        with team.together(to_first=True) as sums:
            if team.rank:
                staging.await_folder(folder)  # of a run that was killed there may be another
            digests = SaveDigests.of(outline.tensors, outline.config, outline.paths)
            writer = _Writer(staging, digests)
            sums.value = writer.write(parts, task, workers, progress)
            if team.rank:
                staging.sync()
        with team.together():
            if plan is not None:
                check_replicas([crcs for crcs, _ in sums.values])
                if digests is not None:
                    attested = digests.attested([found for _, found in sums.values])
                    staging.write_small(DIGESTS, attested.as_bytes())
                _close(staging, plan.arrangement, outline.config)
                name_last(staging.destination, latest)
    except BaseException as error:
        if staging.committed:
            add_hint(error, staging.in_place)
        staging.abandon()
        raise
    if staging.interrupt is not None:
        staging.interrupt.add_note(staging.in_place)
        raise staging.interrupt
    return Saved(
        str(path),
        task.file_bytes,
        outline.total_bytes,
        time.perf_counter() - started,
        what.counts.tensors,
        what.counts.state_tensors,
        what.counts.hyperparameters,
        sorted(name.removeprefix(EXTRA) for name in what.extra),
        what.counts.changed,
        what.counts.without_config,
    )


def _own_parts(what: Snapshot, team: Crew) -> list[HeldPart]:
    """The boxes of this rank, without those of tensors of which another rank that saves here has the numbers."""
    ranks = {name: team.numbers_of((rank,)) for name, rank in what.sent.items()}
    return [part for part in what.parts if ranks.get(part.name, ()) in ((), (team.rank,))]


def _statement(what: Snapshot, own_parts: Sequence[HeldPart], team: Crew) -> Statement:
    ranks = cache(team.numbers_of)
    parts = [(part, ranks(part.proof)) for part in own_parts]
    return Statement.of(parts, what.entries, what.extra, what.config, what.nesting)


def _planned(
    staging: Staging, said: Sequence[Statement], digests: Sequence[bytes], team: Crew
) -> tuple[SavePlan | None, Outline, int]:
    """The plan, on the first rank alone, what all are told of it, and the folder that it began."""
    plan: SavePlan | IntarsiaError | None = None
    folder: int | None = None
    with team.together():
        if team.rank == 0:
            try:
                plan = SavePlan.of(heard(said, digests))
            except IntarsiaError as error:  # all ranks raise what is wrong with what they hold
                plan = error
            else:
                _begin(staging, plan.arrangement)
                folder = staging.folder_number
    outline, folder = team.broadcast((plan.outline if isinstance(plan, SavePlan) else plan, folder))
    if isinstance(outline, IntarsiaError):
        raise outline
    return plan if isinstance(plan, SavePlan) else None, outline, folder


def _begin(staging: Staging, arrangement: Arrangement) -> None:
    staging.begin(sum(arrangement.files.values()))
    for file, size in arrangement.files.items():
        staging.create(file, size)
    for file, at, data in arrangement.fixed:
        staging.write(file, at, [data])


@dataclass(frozen=True)
class _Writer:
    """Writes one rank's boxes."""

    staging: Staging
    digests: SaveDigests | None

    def write(
        self, parts: Sequence[HeldPart], task: RankTask, workers: int, progress: Progress | None
    ) -> tuple[dict[Key, int], Sums]:
        """Write what is this rank's to write: checksums of boxes whose replicas are to be compared, sums."""
        todo = [*zip(parts, task.slots, task.unproven, strict=True)]
        done = share_out(
            todo, workers, self._write, progress=progress, nbytes=lambda one: one[0].nbytes
        )
        both = zip(parts, done, strict=True)
        crcs = {(part.name, part.box): crc for part, (crc, _) in both if crc is not None}
        return crcs, merged_sums(sums for _, sums in done)

    def _write(self, todo: tuple[HeldPart, Slot | None, bool]) -> tuple[int | None, Sums]:
        part, slot, unproven = todo
        if slot is None and not unproven:
            return None, {}
        if slot is not None and slot.box != part.box:
            raise CoverageError(f"{part.box} of `{part.name}` was given the place of {slot.box}")
        data = as_bytes(part.memory.contiguous().cpu().resolve_conj().resolve_neg())
        if len(data) != part.nbytes:
            raise CoverageError(
                f"{part.box} of `{part.name}` has {part.nbytes:,} bytes, the memory {len(data):,}",
                hint="give `shape=` and `stride=` to `DTensor.from_local`, the same on all ranks",
            )
        found: Sums = {}
        if slot is not None and self.digests is not None:
            found, crc = self.digests.sums(part.name, part.box, data, part.dtype)
        else:
            crc = crc32(data)
        if slot is not None:
            _write_slot(self.staging, slot, data, crc)
        return crc if unproven else None, found


def _write_slot(staging: Staging, slot: Slot, data: Any, crc: int) -> None:
    assert slot.wrapping is not None
    at = slot.start_bytes - slot.wrapping.start_bytes
    staging.write(slot.file, at, [slot.wrapping.head, data, slot.wrapping.tail(crc)])


def _close(staging: Staging, arrangement: Arrangement, config: Mapping[str, Any] | None) -> None:
    if config is not None:
        staging.write_small("config.json", config_text(config).encode())
    for file, data in arrangement.closing.items():
        staging.write_small(file, data)
    notes = staging.commit()
    for note in notes if staging.interrupt is None else ():
        warnings.warn(f"{staging.destination}: {note}", stacklevel=2)

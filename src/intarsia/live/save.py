"""Saving a live model: every rank writes the boxes that it alone is to write, and one rank commits.

A box that several ranks hold is written once.  Where a DTensor says that they hold the same, that
is the proof; where only the name says so (plain tensors, equal tensors on several meshes), every
rank's checksum must agree, or nothing is committed.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from intarsia.conversion.replacing import check_replaceable
from intarsia.errors import CoverageError, IntarsiaError, UsageError, few
from intarsia.format.base import Arrangement, Slot
from intarsia.format.folder.side_files import DIGESTS
from intarsia.format.naming.wrappers import bare
from intarsia.live.contents import Contents
from intarsia.live.entries import pack, packed
from intarsia.live.fill import as_bytes
from intarsia.live.latest import name_last
from intarsia.live.megatron import rows as megatron_rows
from intarsia.live.megatron.model import is_megatron, refuse_optimizer
from intarsia.live.megatron_settings import hub_config
from intarsia.live.memory.exchange import Statement, Task, heard
from intarsia.live.memory.holding import memories_of
from intarsia.live.memory.parts import Part, Seen, parts_of
from intarsia.live.memory.replicas import Key, check_replicas
from intarsia.live.memory.save_digests import SaveDigests, Sums
from intarsia.live.names import config_of, model_in
from intarsia.live.optimizer.agreement import WITHOUT
from intarsia.live.optimizer.classes import CLASS, classes_of, opened
from intarsia.live.optimizer.fsdp1 import WholeOptimizer
from intarsia.live.optimizer.groups import settings_of
from intarsia.live.optimizer.state_to_save import never_stepped, states, values
from intarsia.live.optimizer.stepped import Steps
from intarsia.live.report import Counts, Saved
from intarsia.live.save_plan import SavePlan
from intarsia.live.values import packed_with
from intarsia.run.progress import Progress
from intarsia.run.ranks.crew import Crew
from intarsia.run.sharing import share_out
from intarsia.run.sums.checksum import crc32
from intarsia.run.sums.hashing import merged
from intarsia.state.names import StateName
from intarsia.store.address import named
from intarsia.store.local.staging import Staging

if TYPE_CHECKING:
    import torch


@dataclass
class Snapshot:
    """What this process has to save, at one moment: its memory or a copy of that, and how to cut it."""

    memory: Mapping[str, torch.Tensor]
    cut: Callable[[Mapping[str, torch.Tensor]], Iterable[Part]]
    entries: dict[str, bytes]
    extra: dict[str, bytes]
    config: Mapping[str, Any] | None
    counts: Counts = Counts()
    identities: tuple[int, ...] = ()
    """The identity of the live tensor that each of `memory` is of, where all of them have one."""

    @cached_property
    def parts(self) -> list[Part]:
        """The boxes of all tensors; worked out when they are asked for, not while training waits."""
        return list(self.cut(self.memory))


def snapshot(
    model: Any,
    optimizer: Any = None,
    extra: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Everything that this process holds, by the names that torch gives it; nothing is copied."""
    given = packed(extra)
    if is_megatron(model):
        refuse_optimizer(optimizer)
        parts = {f"{p.name}{p.box}": p for p in megatron_rows.parts_of(model, config)}
        return Snapshot(
            {key: p.memory for key, p in parts.items()},
            lambda memory: (replace(p, memory=memory[key]) for key, p in parts.items()),
            {},
            given,
            hub_config(config),
            Counts(len(parts)),
        )
    contents = Contents.of(model)
    tensors = dict(contents.tensors)
    if not tensors:
        raise UsageError(
            "there is no tensor to save",
            hint="give a module, or a dict of modules and tensors; `extra` goes beside them",
        )
    contents.check_names()
    if lost := contents.left_out:
        raise UsageError(
            f"{len(lost)} tensors of the module are not in its state_dict(): {few(lost, 4)}",
            hint="make its state_dict() return them, or save only what it returns: save(path,"
            " module.state_dict())",
        )
    counts = Counts(len(tensors))
    given = packed_with(contents, given)
    entries: dict[str, bytes] = {}
    optimizer = contents.optimizer_with(optimizer)
    if optimizer is not None:
        own, stepped_by = opened(optimizer), model
        if whole := WholeOptimizer.of(model, own, state=True):
            own, stepped_by = whole.opened, whole.model
        steps = Steps.of(stepped_by, own)
        entries = values(steps.held, own.held)
        entries |= {
            CLASS: pack(classes_of(own.held), CLASS),
            WITHOUT: pack(never_stepped(steps.held, own.held), WITHOUT),
        }
        for state in states(steps.held, own.held):
            tensors[StateName(state.kind, bare(state.param.name)).as_torch] = state.tensor
        for name, value in settings_of(steps.settings, own.settings):
            if hasattr(value, "dtype"):
                tensors[name] = value
            else:
                entries[name] = pack(value, name)
        held = (x for key, x in own.held.state.items() if not isinstance(key, str))
        counts = Counts.of(counts.tensors, held, own.settings.param_groups)
    seen = {name: Seen.of(tensor, name) for name, tensor in tensors.items()}
    cut = partial(parts_of, seen)
    lent = config or config_of(model_in(model))
    identities = tuple(map(id, tensors.values()))
    return Snapshot(memories_of(tensors), cut, entries, given, lent, counts, identities)


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
        named(path), overwrite=overwrite, judge=check_replaceable, option="overwrite=True"
    )
    with team.together() as told:
        if team.rank == 0:
            staging.check()
        statement = _statement(what, team)
        told.value = statement.digest
    try:
        with team.together(to_first=True) as said:
            said.value = statement.said(told.values, team.rank)
        plan: SavePlan | IntarsiaError | None = None
        with team.together():
            if team.rank == 0:
                try:
                    plan = SavePlan.of(heard(said.values, told.values))
                except IntarsiaError as error:  # all ranks raise what is wrong with what they hold
                    plan = error
                else:
                    _begin(staging, plan.arrangement)
        outline = team.broadcast(plan.outline if isinstance(plan, SavePlan) else plan)
        if isinstance(outline, IntarsiaError):
            raise outline
        task = team.scatter(plan.tasks if isinstance(plan, SavePlan) else ())
        with team.together(to_first=True) as sums:
            digests = SaveDigests.of(outline.tensors, outline.config)
            writer = _Writer(staging, digests)
            sums.value = writer.write(what, task, workers, progress)
            if team.rank:
                staging.sync()
        with team.together():
            if isinstance(plan, SavePlan):
                check_replicas([crcs for crcs, _ in sums.values])
                if digests is not None:
                    attested = digests.attested([found for _, found in sums.values])
                    staging.write_small(DIGESTS, attested.as_bytes())
                _close(staging, plan.arrangement, outline.config)
                name_last(staging.destination, latest)
    except BaseException:
        staging.abandon()
        raise
    return Saved(
        str(path),
        task.file_bytes,
        outline.total_bytes,
        time.perf_counter() - started,
        what.counts.tensors,
        what.counts.state_tensors,
        what.counts.hyperparameters,
        sorted(what.extra),
    )


def _statement(what: Snapshot, team: Crew) -> Statement:
    ranks = cache(team.numbers_of)
    parts = [(part, ranks(part.proof)) for part in what.parts]
    return Statement.of(parts, what.entries, what.extra, what.config)


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
        self, what: Snapshot, task: Task, workers: int, progress: Progress | None
    ) -> tuple[dict[Key, int], Sums]:
        """Write what is this rank's to write: checksums of boxes whose replicas are to be compared, sums."""
        todo = [*zip(what.parts, task.slots, task.unproven, strict=True)]
        done = share_out(
            todo, workers, self._write, progress=progress, nbytes=lambda one: one[0].nbytes
        )
        both = zip(what.parts, done, strict=True)
        crcs = {(part.name, part.box): crc for part, (crc, _) in both if crc is not None}
        return crcs, merged(sums for _, sums in done)

    def _write(self, todo: tuple[Part, Slot | None, bool]) -> tuple[int | None, Sums]:
        part, slot, unproven = todo
        if slot is None and not unproven:
            return None, {}
        if slot is not None and slot.box != part.box:
            raise CoverageError(f"{part.box} of `{part.name}` was given the place of {slot.box}")
        data = as_bytes(part.memory.contiguous().cpu())
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
    staging.write(slot.file, at, [slot.wrapping.head(crc), data, slot.wrapping.tail(crc)])


def _close(staging: Staging, arrangement: Arrangement, config: Mapping[str, Any] | None) -> None:
    if config is not None:
        text = json.dumps(config, indent=2, default=str) + "\n"
        staging.write_small("config.json", text.encode())
    for file, data in arrangement.closing.items():
        staging.write_small(file, data)
    for note in staging.commit():
        warnings.warn(f"{staging.destination}: {note}", stacklevel=2)

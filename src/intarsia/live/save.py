"""Saving a live model: every rank writes the boxes that it alone is to write, and one rank commits.

A box that several ranks hold is written once.  Where a DTensor says that they hold the same, that
is the proof; where only the name says so (plain tensors, equal tensors on several meshes), every
rank's checksum must agree, or nothing is committed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.dtypes import DType
from intarsia.errors import CoverageError, LayoutError
from intarsia.format.base import Arrangement, Slot
from intarsia.format.dcp import file_of, lay_out
from intarsia.live.entries import extra_entries, pack
from intarsia.live.fill import as_bytes
from intarsia.live.holding import memories_of
from intarsia.live.latest import numbered, point
from intarsia.live.names import bare, config_of, named_tensors
from intarsia.live.optimizer import groups_of, states
from intarsia.live.parts import Part, parts_of
from intarsia.mesh import Box, Shape
from intarsia.planning.tiling import tiling_fault
from intarsia.run.checksum import crc32
from intarsia.run.crew import Crew
from intarsia.store.staging import Staging, check_destination

if TYPE_CHECKING:
    import torch

Key = tuple[str, Box]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank says of one of its boxes before anything is written."""

    name: str
    dtype: DType
    shape: Shape
    box: Box
    proof: tuple[int, ...]


@dataclass
class Snapshot:
    """What this process has to save, at one moment: tensors, and its memory of each or a copy of it."""

    tensors: Mapping[str, Any]
    memory: Mapping[str, torch.Tensor]
    entries: dict[str, bytes]
    extra: dict[str, bytes]
    config: Mapping[str, Any] | None

    @cached_property
    def parts(self) -> list[Part]:
        """The boxes of all tensors; worked out when they are asked for, not while training waits."""
        return list(parts_of(self.tensors, self.memory))

    @property
    def nbytes(self) -> int:
        return sum(p.box.size * p.dtype.itemsize for p in self.parts)


@dataclass
class Saved:
    """What a save wrote, on this rank and on all."""

    path: str
    written_bytes: int = 0
    total_bytes: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def snapshot(
    model: Any,
    optimizer: Any = None,
    extra: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Everything that this process holds, by the names that torch gives it; nothing is copied."""
    tensors = {bare(name): x for name, x in named_tensors(model).items()}
    entries: dict[str, bytes] = {}
    if optimizer is not None:
        for state in states(model, optimizer):
            tensors[f"optimizer.state.{bare(state.param.name)}.{state.kind}"] = state.tensor
        for number, group in enumerate(groups_of(model, optimizer)):
            for key, value in group.items():
                name = f"optimizer.param_groups.{number}.{key}"
                entries[name] = pack(value, name)
    packed = {key: pack(value, f"extra[{key!r}]") for key, value in (extra or {}).items()}
    return Snapshot(tensors, memories_of(tensors), entries, packed, config or config_of(model))


def write(
    path: str | Path,
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
    staging = Staging(Path(path), overwrite=overwrite)
    with team.together() as told:
        if team.rank == 0:
            check_destination(staging.destination, overwrite)
        told.value = _tell(what)
    try:
        with team.together():
            holders = _holders([said for said, _, _, _ in told.values])
            entries: dict[str, bytes] = {}
            for _, held, _, _ in told.values:
                entries |= held
            entries |= extra_entries([extra for _, _, extra, _ in told.values])
            held = [(name, *_of(boxes), _ranks(boxes)) for name, boxes in holders.items()]
            arrangement = lay_out(held, entries, team.size)
            if team.rank == 0:
                _begin(staging, arrangement)
        with team.together() as sums:
            found = _write_parts(what, arrangement, staging, team.rank, holders, workers, progress)
            if team.rank:
                staging.sync()
            sums.value = found
        with team.together():
            if team.rank == 0:
                _check_replicas(sums.values)
                config = next((c for _, _, _, c in told.values if c is not None), None)
                _close(staging, arrangement, config)
                where = staging.destination
                if numbered(where) if latest is None else latest:
                    point(where)
    except BaseException:
        staging.abandon()
        raise
    total = sum(arrangement.files.values())
    return Saved(
        str(path),
        arrangement.files.get(file_of(team.rank), 0),
        total,
        time.perf_counter() - started,
    )


def _tell(what: Snapshot) -> tuple[list[Told], dict[str, bytes], dict[str, bytes], Any]:
    said = [Told(p.name, p.dtype, p.shape, p.box, p.proof) for p in what.parts]
    return said, what.entries, what.extra, what.config


Holders = dict[str, dict[Box, list[tuple[int, Told]]]]


def _holders(told: Sequence[Sequence[Told]]) -> Holders:
    """The ranks that hold each box; raise where boxes of one tensor contradict or do not tile it."""
    found: Holders = {}
    for rank, said in enumerate(told):
        for each in said:
            found.setdefault(each.name, {}).setdefault(each.box, []).append((rank, each))
    proven: dict[tuple[Shape, tuple[Box, ...]], str | None] = {}
    for name, boxes in found.items():
        everyone = [pair for held in boxes.values() for pair in held]
        first_rank, first = everyone[0]
        for rank, each in everyone[1:]:
            if (each.shape, each.dtype) != (first.shape, first.dtype):
                raise LayoutError(
                    f"`{name}` is {first.dtype} {list(first.shape)} on rank {first_rank} and"
                    f" {each.dtype} {list(each.shape)} on rank {rank}",
                    hint="tensors of one name are one tensor: give pipeline stages names of their own,"
                    " and `shape=` to `DTensor.from_local`",
                )
        key = (first.shape, tuple(boxes))
        if key not in proven:
            proven[key] = tiling_fault(first.shape, tuple(boxes))
        if (fault := proven[key]) is not None:
            raise CoverageError(
                f"what ranks hold of `{name}` does not make all of it: {fault}",
                hint="every rank of the model's mesh has to call save",
            )
    return found


def _of(boxes: Mapping[Box, Sequence[tuple[int, Told]]]) -> tuple[DType, Shape]:
    (_, first), *_ = next(iter(boxes.values()))
    return first.dtype, first.shape


def _ranks(boxes: Mapping[Box, Sequence[tuple[int, Told]]]) -> dict[Box, list[int]]:
    return {box: [rank for rank, _ in held] for box, held in boxes.items()}


def _begin(staging: Staging, arrangement: Arrangement) -> None:
    staging.begin(sum(arrangement.files.values()))
    for file, size in arrangement.files.items():
        staging.create(file, size)
    for file, at, data in arrangement.fixed:
        staging.write(file, at, [data])


def _write_parts(
    what: Snapshot,
    arrangement: Arrangement,
    staging: Staging,
    rank: int,
    holders: Holders,
    workers: int,
    progress: Progress | None,
) -> dict[Key, int]:
    """Write what is this rank's to write; the checksums of boxes whose replicas are to be compared."""
    slots = {(name, s.box): s for name, found in arrangement.slots.items() for s in found}
    own, total, done = file_of(rank), what.nbytes, 0

    def carry_out(part: Part) -> tuple[Key, int] | None:
        nonlocal done
        slot = slots[part.name, part.box]
        unproven = _is_unproven(holders[part.name][part.box])
        if slot.file != own and not unproven:
            return None
        data = as_bytes(part.memory.contiguous().cpu())
        crc = crc32(data)
        if slot.file == own:
            _write_slot(staging, slot, data, crc)
        done += len(data)
        if progress is not None:
            progress(done, total)
        return ((part.name, part.box), crc) if unproven else None

    with ThreadPoolExecutor(workers, "intarsia-save") as pool:
        return dict(pair for pair in pool.map(carry_out, what.parts) if pair is not None)


def _is_unproven(held: Sequence[tuple[int, Told]]) -> bool:
    """Whether several ranks hold a box, and not one DTensor's mesh says that it is the same."""
    ranks = {rank for rank, _ in held}
    return len(ranks) > 1 and not all(ranks <= set(each.proof) for _, each in held)


def _write_slot(staging: Staging, slot: Slot, data: Any, crc: int) -> None:
    assert slot.wrapping is not None
    at = slot.start_bytes - slot.wrapping.start_bytes
    staging.write(slot.file, at, [slot.wrapping.head(crc), data, slot.wrapping.tail(crc)])


def _check_replicas(sums: Sequence[Mapping[Key, int]]) -> None:
    """Raise where ranks that should hold the same do not."""
    seen: dict[Key, tuple[int, int]] = {}
    for rank, found in enumerate(sums):
        for key, crc in found.items():
            first, known = seen.setdefault(key, (rank, crc))
            if known != crc:
                name, box = key
                raise CoverageError(
                    f"`{name}` {box} differs between rank {first} and rank {rank}, and no DTensor says"
                    " whose it is",
                    hint="make it a DTensor whose placements say how ranks differ, or give it a name"
                    " of its own on each rank; nothing was committed",
                )


def _close(staging: Staging, arrangement: Arrangement, config: Mapping[str, Any] | None) -> None:
    if config is not None:
        text = json.dumps(config, indent=2, default=str) + "\n"
        staging.write_small("config.json", text.encode())
    for file, data in arrangement.closing.items():
        staging.write_small(file, data)
    staging.commit()

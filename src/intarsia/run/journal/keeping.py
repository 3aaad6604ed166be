"""A journal of what a run has written, from which a run that was killed is continued.

It lies in a folder beside the files that it speaks of.  The file `job` says whose journal this
is, and holds the records that are known to be on disk; each process appends its own to a file
of its own.  A record is one line with a checksum, written after the bytes that it speaks of,
so a kill leaves at most a torn last line.  A kill loses nothing that was handed to the kernel,
a power cut may: so now and then the files are synced and a mark says how many records that
covers.  A record is believed where the bytes read back have the checksums that it gives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from pathlib import PurePath
from typing import Any

import numpy as np

from intarsia.errors import StoreError
from intarsia.format.base import Arrangement, Slot
from intarsia.frozen import frozen_open
from intarsia.planning.manifest import Target
from intarsia.run.journal.done import NOTHING, Done
from intarsia.run.journal.records import line_of, read_lines, to_line, written_in
from intarsia.run.sharing import share_out
from intarsia.run.sums.checksum import crc32
from intarsia.run.windows.slots import Slots
from intarsia.run.windows.written import SlotPart, Written, has_crcs, parts_of_slots
from intarsia.store.log import Log, log_of
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import exists, names_like
from intarsia.store.system_errors import errors_naming
from intarsia.store.writing.staging import HEAD, Staging

JOB = HEAD
LEAST_SECONDS, REST = 0.25, 10
"""A mark follows the one before it after this time, and after so many times what that one took."""

Facts = Mapping[str, str]


@frozen_open
class EarlierJournal:
    """A journal that an earlier run left: whose it is, and the number of the folder that it names."""

    facts: Facts
    folder: int
    generation: int

    def differences(self, facts: Facts) -> list[str]:
        """How another job differs from the one whose journal this is."""
        names = [*self.facts, *(name for name in facts if name not in self.facts)]
        return [
            f"{name}: {self.facts.get(name, 'absent')} then, {facts.get(name, 'absent')} now"
            for name in names
            if self.facts.get(name) != facts.get(name)
        ]


@dataclass
class Journal:
    """The journal of a job's staging folder; `targets` are those of the job, in its order."""

    staging: Staging
    targets: Sequence[Target]
    _path: PurePath | None = None
    _log: Log | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _lines: list[bytes] = field(default_factory=list)
    _count: int = 0
    _due_at: float = 0.0
    _marking: bool = False
    _failure: BaseException | None = None

    @property
    def folder(self) -> PurePath:
        return self.staging.journal

    def find(self) -> EarlierJournal | None:
        """What an earlier run left here; None if nothing, or nothing that can be read."""
        head = next(read_lines(self.folder / JOB), None)
        if head is None or head.keys() != {"facts", "folder", "generation"}:
            return None
        facts, folder, generation = head["facts"], head["folder"], head["generation"]
        if type(facts) is not dict or {*map(type, facts.values())} - {str}:
            return None
        if type(folder) is not int or type(generation) is not int:
            return None
        return EarlierJournal(facts, folder, generation)

    def begin(self, facts: Facts, done: Done = NOTHING, generation: int = 0) -> None:
        """Say in one step whose journal this is, and which of the job's bytes are on disk."""
        head = {
            "facts": dict(facts),
            "folder": self.staging.folder_number,
            "generation": generation,
        }
        lines = [to_line(head), *(to_line(line_of(x, self._index)) for x in done.records)]
        with errors_naming(self.folder, lasting=bool(done.records)):
            store = self.staging.store
            store.put(self.folder / JOB, b"".join(lines), lasting=bool(done.records))
            for path in names_like(self.folder):
                if path.name != JOB:
                    store.remove(path)

    def read(self, found: EarlierJournal) -> tuple[Done, Done]:
        """The records that are on disk for sure, and those that may be."""
        lines = (line for line in read_lines(self.folder / JOB) if "facts" not in line)
        sure, _ = self._believed(lines)
        maybe: list[Written] = []
        files = names_like(self.folder, f"{found.generation}-*")
        for _, log in groupby(files, lambda path: log_of(path.name)):
            records, marked = self._believed(chain.from_iterable(map(read_lines, log)))
            sure += records[:marked]
            maybe += records[marked:]
        return Done(sure), Done(maybe)

    def _believed(self, lines: Iterable[Mapping[str, Any]]) -> tuple[list[Written], int]:
        """The records up to the first that makes no sense, and how many of them a mark covers."""
        records: list[Written] = []
        marked = 0
        for line in lines:
            if type(line.get("synced")) is int and 0 <= line["synced"] <= len(records):
                marked = line["synced"]
            elif (record := written_in(line, self.targets)) is not None:
                records.append(record)
            else:
                break
        return records, marked

    def prove(self, found: EarlierJournal, arrangement: Arrangement, workers: int = 1) -> Done:
        """The records whose bytes read back as they say: what is synced may have been damaged since."""
        records = [record for done in self.read(found) for record in done.records]
        with Folder(self.staging.folder) as folder:
            files, slots = arrangement.files, Slots(arrangement.columns)
            there = {x for x in files if folder.has(x) and folder.size(x) == files[x]}

            def holds(record: Written) -> bool:
                return has_crcs(record, slots) and all(
                    slot.file in there and _holds(part, slot, folder)
                    for part in parts_of_slots(record, slots)
                    for slot in [slots[part.target][part.slot]]
                )

            held = share_out(records, workers, holds)
        return Done([record for record, good in zip(records, held, strict=True) if good])

    def join(self, rank: int) -> Done:
        """Take part as one of the processes of the job: what is done already."""
        found = self.find()
        assert found is not None, f"{self.folder} is gone"
        done, _ = self.read(found)
        self._path = path = self.folder / f"{found.generation}-{rank}"
        with errors_naming(path):
            self._log = self.staging.store.log(path)
        self._due_at = time.monotonic() + LEAST_SECONDS
        return done

    def record(self, written: Written) -> None:
        """Note a step whose bytes the kernel has, from any thread."""
        line = to_line(line_of(written, self._index))
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._lines.append(line)
            self._count += 1
            due = time.monotonic() >= self._due_at and not self._marking
            self._marking = self._marking or due
        self._append()
        if due:
            self.staging.transaction.aside(self._mark)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Stop taking part; a sync that failed is raised, unless something else was.

        A disk that fails may drop what the kernel still shows, so nothing here is believed then,
        of no process.
        """
        self.staging.transaction.settle()
        if self._path is None or self._log is None:
            return
        log, self._log = self._log, None
        try:
            with errors_naming(self._path, lasting=True):
                log.close()
        except StoreError as failure:
            self._failure = self._failure or failure
        lost = self.staging.transaction.failure
        if any(map(self.staging.is_broken, (error, self._failure, lost))):
            for path in (self.folder / JOB, self._path):
                with suppress(OSError, StoreError):
                    self.staging.store.remove(path)
        if self._failure is not None and error is None:
            raise self._failure

    def _mark(self) -> None:
        """Sync the files, and say how many records that covers: those from before it began."""
        started = time.monotonic()
        try:
            with self._lock:
                count = self._count
            self.staging.flush()
            with self._lock:
                self._lines.append(to_line({"synced": count}))
            self._append()
            assert self._log is not None
            with errors_naming(self.folder):
                self._log.sync()
            now = time.monotonic()
            with self._lock:
                self._due_at = now + max(LEAST_SECONDS, REST * (now - started))
                self._marking = False
        except BaseException as error:
            if not self._is_gone(error):
                self._failure = error

    def _is_gone(self, error: BaseException) -> bool:
        """Whether somebody has removed the journal: there are no marks then, and nothing to resume."""
        lost = isinstance(error, StoreError) and isinstance(error.__cause__, FileNotFoundError)
        return lost and not exists(self.folder)

    def _append(self) -> None:
        """Write the lines that wait; one thread does so for all, and nobody waits for it."""
        assert self._log is not None, "nobody joined"
        while self._lines and self._writing.acquire(blocking=False):
            try:
                with self._lock:
                    lines, self._lines = self._lines, []
                with errors_naming(self.folder):
                    self._log.append(b"".join(lines))
            finally:
                self._writing.release()

    @cached_property
    def _index(self) -> dict[str, int]:
        return {target.name: k for k, target in enumerate(self.targets)}


def _holds(part: SlotPart, slot: Slot, folder: Folder) -> bool:
    """Whether the file holds what was written for a part, its wrapping included."""
    held = np.empty(part.length_bytes, np.uint8)
    folder.read_into(slot.file, slot.start_bytes + part.start_bytes, held.data)
    if crc32(held) != part.crc:
        return False
    wrapping = slot.wrapping
    if part.start_bytes if wrapping is None else not part.whole:
        return True
    head, tail = (wrapping.head, wrapping.tail(part.crc)) if wrapping is not None else (b"", b"")
    head = bytes(slot.gap_bytes) + head
    before = slot.start_bytes - (0 if wrapping is None else wrapping.start_bytes) - slot.gap_bytes
    after = slot.start_bytes + part.length_bytes
    return (
        folder.read(slot.file, before, len(head)) == head
        and folder.read(slot.file, after, len(tail)) == tail
    )

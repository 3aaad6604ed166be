"""Reading the files of a folder at byte offsets, whatever store keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import PurePath
from typing import TYPE_CHECKING

from intarsia.errors import FormatError, IntarsiaError, UsageError
from intarsia.kernel.library import has_kernel
from intarsia.kernel.summing import FileRuns, Sums, sum_file
from intarsia.quantity import human
from intarsia.store.address import named
from intarsia.store.base import Range
from intarsia.store.reading.headers_once import is_reading_once, read_once
from intarsia.store.reading.lookup import is_file
from intarsia.store.registry import store_of
from intarsia.store.stamp import Stamp, changed, note_stamp, removed
from intarsia.store.system_errors import unanswered, unreadable

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from intarsia.kernel.surveying import Asked, Surveyed


MAX_SMALL_BYTES = 256 << 20
"""The largest file that is read as a whole, where its reader states no other."""

_SMALL_BYTES = 1 << 20
_PART_BYTES = 8 << 20


class Folder:
    """The files below one folder, read by position from any thread.

    Each file is checked to be the one that was looked at first, or that `stamps` give.
    `in_memory` are further files that exist in memory alone.
    """

    def __init__(
        self,
        root: str | PurePath,
        in_memory: Mapping[str, bytes] | None = None,
        stamps: Mapping[str, tuple[int, int, int, int]] | None = None,
    ) -> None:
        self.root = named(root)
        self._in_memory = in_memory or {}
        self._stamps = {file: Stamp(*stamp) for file, stamp in (stamps or {}).items()}
        self._reader = store_of(self.root).reader(self.root)
        self._rooms = threading.local()
        self._read_bytes = 0

    @property
    def read_bytes(self) -> int:
        """How many bytes were read so far."""
        return self._read_bytes

    def has(self, file: str) -> bool:
        """Whether there is such a file."""
        return is_file(self.root / file)

    def hold(self) -> None:
        """Open the folder now, so that it is the one read from whatever takes its place."""
        try:
            self._reader.hold()
        except OSError as error:
            raise unreadable(self.root, error) from error

    def size(self, file: str) -> int:
        """The length of a file in bytes."""
        return self._stamp(file).size_bytes

    def read(self, file: str, start_bytes: int, length_bytes: int) -> bytes:
        """Exactly these bytes of a file."""
        if file in self._in_memory or not is_reading_once():
            return self._read(file, start_bytes, length_bytes)
        at = str(self.root / file), self._stamp(file), start_bytes, length_bytes
        return read_once(at, lambda: self._read(file, start_bytes, length_bytes))

    def _read(self, file: str, start_bytes: int, length_bytes: int) -> bytes:
        if length_bytes > _SMALL_BYTES and file not in self._in_memory:
            self._now(file)  # what is not there is not worth the memory
        buffer = bytearray(length_bytes)
        self.read_into(file, start_bytes, buffer)
        return bytes(buffer)

    def read_all(self, file: str, most_bytes: int = MAX_SMALL_BYTES) -> bytes:
        """A whole small file."""
        return self.read_small(file, 0, self.size(file), most_bytes)

    def parts(self, file: str) -> Iterator[tuple[int, bytes]]:
        """A whole file a part at a time, each with the byte at which it begins."""
        size_bytes = self.size(file)
        for at in range(0, size_bytes, _PART_BYTES):
            yield at, self.read(file, at, min(_PART_BYTES, size_bytes - at))

    def read_small(
        self, file: str, start_bytes: int, length_bytes: int, most_bytes: int = MAX_SMALL_BYTES
    ) -> bytes:
        """Bytes that are to be understood as a whole; a file's own word is not enough for their size."""
        if length_bytes > most_bytes:
            raise FormatError(
                f"{self.root / file} holds {human(length_bytes)} where at most"
                f" {human(most_bytes)} are read at once"
            )
        return self.read(file, start_bytes, length_bytes)

    def read_into(self, file: str, start_bytes: int, buffer: Buffer) -> None:
        """Fill `buffer` from a file, starting at `start_bytes`."""
        self.read_each(file, [(start_bytes, memoryview(buffer).cast("B"))])

    def read_each(self, file: str, wanted: Sequence[Range]) -> None:
        """Fill each buffer from a file, starting at its byte, and check once that the file is what it was."""
        if file in self._in_memory:
            held = self._in_memory[file]
            for start_bytes, view in wanted:
                view[:] = held[start_bytes : start_bytes + len(view)]
            return
        with self._one_file(file, ((at, at + len(view)) for at, view in wanted)) as then:
            now = self._reader.read(file, wanted)
            if now != then:
                raise changed(self.root / file, then, now)
        self._read_bytes += sum([len(view) for _, view in wanted])

    def sums(self, file: str, runs: FileRuns) -> Sums | None:
        """Both sums of runs of a file that nobody keeps; None where they are to be read to be summed."""
        with self._for_kernel(file, zip(runs.at, runs.lengths, strict=True)) as fd:
            return None if fd is None else sum_file(fd, runs)

    def survey(self, file: str, asked: Asked) -> Surveyed | None:
        """What matrices of a file show that nobody keeps; None where they are to be read to be looked at."""
        # Only checks of one checkpoint ask for it.
        from intarsia.kernel.surveying import survey_file

        with self._for_kernel(file, [(x.at, x.nbytes) for x in asked.matrices]) as fd:
            return None if fd is None else survey_file(fd, asked)

    @contextmanager
    def _for_kernel(self, file: str, runs: Iterable[tuple[int, int]]) -> Iterator[int | None]:
        """The descriptor of a file for the kernel to read runs of so many bytes from; None where it cannot."""
        if not has_kernel() or not self.can_move(file):
            yield None
            return
        runs = list(runs)
        wanted = ((at, at + length) for at, length in runs)
        with self._one_file(file, wanted), self.opened_together([file]) as fds:
            yield fds[0] if fds else None
        self.count(sum([length for _, length in runs]) if fds else 0)

    def can_move(self, file: str) -> bool:
        """Whether bytes of a file can be moved without being read here."""
        return self._reader.has_descriptors and file not in self._in_memory

    def unread(self, file: str, start: int, end: int, error: OSError | EOFError) -> IntarsiaError:
        """What it means that bytes of a file could not be moved."""
        if isinstance(error, OSError):
            return self._gone(file, error)
        return self._short(file, self._stamp(file), [(start, end)])

    @contextmanager
    def opened_together(self, files: Sequence[str]) -> Iterator[Sequence[int] | None]:
        """Descriptors of files that are read inside; raise where one is no longer what it was at the end.

        None where one is in memory, or its store has no descriptors for it.
        """
        if not self._in_memory.keys().isdisjoint(files):
            yield None
            return
        for file in files:
            self._stamp(file)
        with ExitStack() as held:
            try:
                found = held.enter_context(self._reader.opened_together(files))
            except OSError as error:
                raise self._gone(error.filename, error) from error
            if found is None:
                yield None
                return
            yield found.descriptors
            for file, fd in zip(files, found.descriptors, strict=True):
                with self._one_file(file, ()) as then:
                    if (now := found.stamp(fd)) != then:
                        raise changed(self.root / file, then, now)

    def count(self, read_bytes: int) -> None:
        """Count bytes that were read from files that are `opened_together`."""
        self._read_bytes += read_bytes

    @contextmanager
    def _one_file(self, file: str, wanted: Iterable[tuple[int, int]]) -> Iterator[Stamp]:
        """The stamp that a file must have while these bytes of it are read; what fails names the file."""
        then = self._stamps.get(file) or self._stamp(file)
        try:
            yield then
        except OSError as error:
            raise self._gone(file, error) from error
        except (EOFError, OverflowError):  # no file has a byte that the system cannot count up to
            raise self._short(file, then, wanted) from None

    def view(self, file: str, start_bytes: int, length_bytes: int) -> memoryview:
        """Exactly these bytes of a file, until this thread views others: they lie where those will.

        A mapping would save a copy, and a file that is cut off meanwhile would end the process.
        """
        if file in self._in_memory:
            return memoryview(self._in_memory[file])[start_bytes : start_bytes + length_bytes]
        if len(getattr(self._rooms, "room", b"")) < length_bytes:
            self._rooms.room = bytearray(length_bytes)
        found = memoryview(self._rooms.room)[:length_bytes]
        self.read_into(file, start_bytes, found)
        return found

    def prefetch_bytes(self, file: str, start_bytes: int, length_bytes: int) -> None:
        """Have the store bring these bytes while others are worked on."""
        if file not in self._in_memory:
            try:
                self._reader.prefetch(file, start_bytes, length_bytes)
            except OSError as error:
                raise self._gone(file, error) from error

    def mapped(self, file: str, end_bytes: int) -> Buffer:
        """A file as memory; its first `end_bytes` are used, and what is written to it stays in this process."""
        if file in self._in_memory or not hasattr(self._reader, "map"):
            raise UsageError(
                f"{self.root / file} is no local file, so it cannot be mapped",
                hint="load it into memory (mapped=False), or copy the checkpoint to a local disk first",
            )
        then = self._stamp(file)
        if end_bytes > then.size_bytes:
            raise self._ends(file, then, 0, end_bytes)
        try:
            found, now = self._reader.map(file)
        except OSError as error:
            raise self._gone(file, error) from error
        if now != then:
            raise changed(self.root / file, then, now)
        private: Buffer = found
        return private

    def _stamp(self, file: str) -> Stamp:
        """The stamp that a file has as long as it is the one that it was."""
        if (then := self._stamps.get(file)) is not None:
            return then
        now = self._now(file)
        then = self._stamps.setdefault(file, now)  # of two threads, the first one's
        if then != now:
            raise changed(self.root / file, then, now)
        note_stamp(self.root / file, now)
        return now

    def _now(self, file: str) -> Stamp:
        try:
            return self._reader.stamp(file)
        except OSError as error:
            raise self._gone(file, error) from error

    def _gone(self, file: str, error: OSError) -> IntarsiaError:
        """What it means that a file cannot be read: that it is gone since then, or was never there."""
        if file in self._stamps and isinstance(error, FileNotFoundError | NotADirectoryError):
            return removed(self.root / file)
        return unreadable(self.root / file, error)

    def _short(self, file: str, then: Stamp, wanted: Iterable[tuple[int, int]]) -> IntarsiaError:
        """What it means that a file has fewer bytes than are wanted: that it was cut off, or was short at first."""
        now = self._now(file)
        if now != then:
            return changed(self.root / file, then, now)
        for start, end in wanted:
            if end > now.size_bytes:
                return self._ends(file, now, start, end)
        path = self.root / file
        return unanswered(path, f"{path}: the store gave fewer bytes than the file has")

    def _ends(self, file: str, now: Stamp, start: int, end: int) -> FormatError:
        return FormatError(
            f"{self.root / file} ends at byte {now.size_bytes:,};"
            f" bytes [{start:,}:{end:,}) were expected",
            hint="the file is truncated, or another has its name: copy it again from its source",
            kind="file-too-short",
            path=self.root / file,
        )

    def close(self) -> None:
        """Close every file."""
        with suppress(OSError):  # what was read is read
            self._reader.close()

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_file(path: PurePath) -> bytes:
    """All of one small file."""
    with Folder(path.parent) as folder:
        return folder.read(path.name, 0, folder.size(path.name))

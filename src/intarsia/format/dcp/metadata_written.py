"""Metadata just as `write_metadata` writes it, read as columns: what recurs is looked at once.

What was found is written again, and has to come to the same bytes, so that a pickle's own machine would find the
same.  Whatever is otherwise, or wrong, is left to `load_inert`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from intarsia.dtypes import BY_TORCH, DType
from intarsia.errors import FormatError, UnsafeError
from intarsia.format.dcp.metadata import (
    LARGEST,
    Metadata,
    TensorRecord,
    check_tensor_name,
    chunk_of,
    paths_of,
    read_pickled,
    type_of,
)
from intarsia.format.dcp.metadata_chunks import chunks_of
from intarsia.format.dcp.metadata_write import END, FRAME, Emitter, memo_of, write_metadata
from intarsia.mesh import Box
from intarsia.planning.chunks import Chunks, FileRanges, Numbers
from intarsia.planning.manifest import Entry
from intarsia.store.reading.file_names import check_name

_GET, _INT = rb"(?:h.|j....)", rb"(?:K.|J....|\x8a\t.{9})"
_EACH_INT = re.compile(_INT, re.DOTALL)
_NUMBERS = {b"h"[0]: (1, 1, 2), b"j"[0]: (1, 4, 5), b"K"[0]: (1, 1, 2), b"J"[0]: (1, 4, 5), 0x8A: (2, 8, 11)}  # fmt: skip
"""Where in an opcode the bytes of its number begin, how many may be others than zero, and how long the opcode is."""
_TEXT = b"X"[0]
NEAR = 8
"""Kinds of tensors that are looked for before any other."""
_EMITTER = Emitter()
_OP = _EMITTER.opcodes


def read_written(data: bytes) -> Metadata | None:
    """The content of a file that is as we write one, and sound; None for any other."""
    with suppress(FormatError, UnsafeError, LookupError, OverflowError, ValueError):
        found = _Reading(data).metadata()
        if write_metadata(found) == data:
            return replace(found, extra=dict(_extra()))
    return None


class _RowTemplate(NamedTuple):
    """What tensors of the same opcodes have in common, and how many bytes each chunk has before its place."""

    dtype: DType
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    before: Sequence[int]


class _Rows:
    """Tensors whose rows have their numbers at the same bytes: the number of the first chunk of each, and its row."""

    def __init__(self, data: bytes, at: int, template: _RowTemplate, width: int) -> None:
        """By the row that begins at a byte of a file, of a tensor whose name is fetched by so many bytes."""
        self.width, end = width, at
        self.holes: list[tuple[int, int]] = []
        for before in template.before:
            end += len(_OP.key) + width + before
            for after in (_OP.start, _OP.length, END):
                first, size, length = _NUMBERS[data[end]]
                self.holes.append((end - at + first, size))
                end += length + len(after)
        self.length = end - at
        self.firsts: list[int] = []
        self.held: list[memoryview] = []

    def put(self, columns: Numbers) -> None:
        """Put the places in the memo of chunks' files, their starts and their lengths at the numbers of the chunks."""
        held = np.frombuffer(b"".join(self.held), np.uint8).reshape(len(self.held), -1)
        (at, sizes), byte = np.array(self.holes)[:, :, None].transpose(1, 0, 2), np.arange(8)
        found = held.take(np.minimum(at + byte, self.length - 1), axis=1)
        found *= byte < sizes
        numbers = found.view("<i8").reshape(len(held), -1, 3)
        chunks = np.array(self.firsts)[:, None] + np.arange(numbers.shape[1])
        columns[:, chunks] = numbers.transpose(2, 0, 1)


class _Reading:
    """A file while it is read, as far as that is as we write it.

    `texts` are what the memo holds from `_EMITTER.slots` on, `pushed` and `gets` the opcodes that push and fetch them;
    `types` are what opcodes fetch.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = len(FRAME) + 8 + len(_EMITTER.head)
        self.texts: list[str] = []
        self.pushed: list[bytes] = []
        self.gets: list[bytes] = []
        self.types: dict[bytes, str] = {}

    def metadata(self) -> Metadata:
        self._fill_memo(_EMITTER.slots)
        self.at += len(_OP.described)
        templates = self._described()
        count, end = len(templates), self.data.index(_OP.planned, self.at)
        count += self.data.count(_OP.object, self.at, end)
        self.at = end + len(_OP.planned)
        names = self.texts[:count]
        for name in names:
            check_tensor_name(name)
        paths = self._paths(names)
        self.at += len(_OP.stored)
        places, at = self._places(templates), 0
        tensors: dict[str, TensorRecord] = {}
        for name, (dtype, shape, boxes, _) in zip(names, templates, strict=False):
            tensors[name] = TensorRecord(name, dtype, shape, Chunks(boxes, places, at))
            at += len(boxes)
        objects = {names[k]: self._object(k) for k in range(len(templates), count)}
        of_objects = [(x.start_bytes, x.length_bytes) for x in objects.values()]
        columns = places.starts, places.lengths, np.array(of_objects, np.int64).reshape(-1)
        if any(((x < 0) | (x > LARGEST // 2)).any() for x in columns):
            raise ValueError("a place beyond every file")
        return Metadata(tensors, objects, paths)

    def _fill_memo(self, slot: int) -> None:
        """Names and element types, each put into the next place of the memo."""
        data, at = self.data, self.at
        while data[at] == _TEXT:
            put, get = memo_of(slot)
            first = at + 5
            at = first + int.from_bytes(data[at + 1 : first], "little")
            self.texts.append(str(data[first:at], "utf-8", "surrogatepass"))
            self.pushed.append(data[first - 5 : at])
            self.gets.append(get)
            at += len(put)
            slot += 1
        while data.startswith(b"ctorch\n", at):
            end = data.index(b"\n", at + 7)
            put, get = memo_of(slot)
            self.types[get] = data[at + 7 : end].decode("ascii")
            at = end + 1 + len(put)
            slot += 1
        self.at = at

    def _described(self) -> list[_RowTemplate]:
        """What each tensor is, in the order of their names."""
        found: list[_RowTemplate] = []
        known: dict[bytes, _RowTemplate] = {}
        near: list[bytes] = []
        match, data, at = _patterns().tensor.match, self.data, self.at
        for get in self.gets:
            first = at + len(get)
            for opcodes in near:
                if data.startswith(opcodes, first):
                    break
            else:
                if (each := match(data, first)) is None:
                    break
                opcodes = each[0]
                if opcodes not in known:
                    known[opcodes] = self._template(*each.groups())
                near = [opcodes, *near[: NEAR - 1]]
            found.append(known[opcodes])
            at = first + len(opcodes)
        self.at = at
        return found

    def _template(self, dtype: bytes, size: bytes, listed: bytes) -> _RowTemplate:
        """What tensors of these opcodes are, and that nothing is wrong with them but what their names may be."""
        chunks = _patterns().chunk.findall(listed)
        boxes = tuple([Box(_size_of(offsets), _size_of(sizes)) for offsets, sizes in chunks])
        places = {("", box.offsets): ("", 0, 0) for box in boxes}
        if len(places) != len(boxes):
            raise ValueError("two chunks at one place")
        each = [chunk_of(box.offsets, box.shape) for box in boxes]
        shape = _size_of(size)
        found = type_of("", BY_TORCH[self.types[dtype]], shape)
        chunks_of("", shape, each, places, [], {})
        indices = _EMITTER.alike(dtype, shape, boxes).indices
        before = [len(index + END + _OP.place) for index in indices]
        return _RowTemplate(found, shape, boxes, before)

    def _paths(self, names: Sequence[str]) -> dict[str, tuple[str | int, ...]]:
        """The paths of names, which most often are the names themselves, in their order."""
        each = zip(self.gets[: len(names)], self.pushed, strict=False)
        whole = b"".join([get + b"(" + text + b"t" for get, text in each])
        if self.data.startswith(whole + _OP.stored, self.at):
            self.at += len(whole)
            return {name: (name,) for name in names}
        fetched = dict(zip(self.gets, names, strict=False))
        found: dict[str, tuple[str | int, ...]] = {}
        while not self.data.startswith(_OP.stored, self.at):
            name = self._step(fetched)
            self.at += len(b"(")
            steps: list[str | int] = []
            while self.data[self.at] != b"t"[0]:
                steps.append(self._step(fetched))
            self.at += len(b"t")
            found[str(name)] = tuple(steps)
        return paths_of(found)

    def _step(self, fetched: Mapping[bytes, str]) -> str | int:
        """A text that is pushed or fetched, or a number."""
        first = self.at
        if self.data[first] == _TEXT:
            first += 5
            self.at = first + int.from_bytes(self.data[first - 4 : first], "little")
            return str(self.data[first : self.at], "utf-8", "surrogatepass")
        number = self._number()
        return fetched.get(self.data[first : self.at], number)

    def _number(self) -> int:
        """The number that an opcode pushes, or of a place in the memo."""
        first, self.at = self.at, self.at + _NUMBERS[self.data[self.at]][2]
        return _number_of(self.data[first : self.at])

    def _places(self, templates: Sequence[_RowTemplate]) -> FileRanges:
        """Where the chunks of all tensors are, in their turn."""
        data, view, at, chunk = self.data, memoryview(self.data), self.at, 0
        last: dict[int, _Rows] = {}
        found: list[_Rows] = []
        for template, name in zip(templates, self.gets, strict=False):
            if not template.boxes:
                continue
            rows, width = last.get(id(template)), len(name)
            alike = rows is not None and data.startswith(_OP.key, at + rows.length)
            if rows is None or not alike or width != rows.width:
                rows = last[id(template)] = _Rows(data, at, template, width)
                found.append(rows)
            rows.firsts.append(chunk)
            rows.held.append(view[at : at + rows.length])
            at, chunk = at + rows.length, chunk + len(template.boxes)
        self.at = at
        columns = np.zeros((3, chunk), np.int64)
        for rows in found:
            rows.put(columns)
        files = np.minimum(columns[0], _EMITTER.slots + len(self.texts))
        used = np.bincount(files) > 0
        names = [self._file(slot) for slot in np.flatnonzero(used).tolist()]
        return FileRanges(names, (np.cumsum(used) - 1)[files], *columns[1:])

    def _file(self, slot: int) -> str:
        """The file that a place of the memo holds."""
        return check_name(self.texts[slot - _EMITTER.slots], "the storage")

    def _object(self, number: int) -> Entry:
        """Where the object of a name is stored."""
        self.at += len(_OP.key + self.gets[number] + _OP.hint + b"N" + END + _OP.place)
        file = self._file(self._number())
        self.at += len(_OP.start)
        start = self._number()
        self.at += len(_OP.length)
        length = self._number()
        self.at += len(END)
        return Entry(self.texts[number], file, start, length)


def _size_of(opcodes: bytes) -> tuple[int, ...]:
    ints = _EACH_INT.findall(opcodes, len(_EMITTER.size_class) + 1, len(opcodes) - 3)
    return tuple(map(_number_of, ints))


def _number_of(opcode: bytes) -> int:
    return int.from_bytes(opcode[_NUMBERS[opcode[0]][0] :], "little", signed=len(opcode) == 11)


class _Patterns(NamedTuple):
    """What is said of a tensor, and of one of its chunks."""

    tensor: re.Pattern[bytes]
    chunk: re.Pattern[bytes]


@cache
def _patterns() -> _Patterns:
    op = type(_OP)(*map(re.escape, _OP))
    size = rb"%b\(%b*+t\x85R" % (re.escape(_EMITTER.size_class), _INT)
    tensor = op.tensor + b"(%b)" % _GET + op.size + b"(%b)" % size + op.chunks
    listed = op.chunk + size + op.sizes + size + END
    chunk = op.chunk + b"(%b)" % size + op.sizes + b"(%b)" % size + END
    tensor += b"((?:%b)*+)" % listed + op.listed
    return _Patterns(*(re.compile(x, re.DOTALL) for x in (tensor, chunk)))


@cache
def _extra() -> Mapping[str, Any]:
    """What we write beside tensors, objects and paths."""
    return read_pickled(write_metadata(Metadata({}, {})), "")[0].extra

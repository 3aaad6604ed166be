"""Metadata just as `write_metadata` writes it, read as columns: what recurs is looked at once.

Each byte has to be the one that we write there for what was found, so that a pickle's own machine would find the
same.  Whatever is otherwise, or wrong, is left to `load_inert`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from intarsia.format.dcp.metadata_rows import GETS, OtherwiseError, metadata_rows
from intarsia.format.dcp.metadata_write import END, FRAME, Emitter, memo_of, planned, write_metadata
from intarsia.mesh import Box
from intarsia.planning.chunks import Chunks, FileRanges
from intarsia.planning.manifest import Entry
from intarsia.store.reading.file_names import check_name

_GET, _INT = rb"(?:h.|j....)", rb"(?:K.|J....|\x8a\t.{9})"
_EACH_INT = re.compile(_INT, re.DOTALL)
_TEXT = b"X"[0]
NEAR = 8
"""Kinds of tensors that are looked for before any other."""
_EMITTER = Emitter()
_OP = _EMITTER.opcodes


def read_written(data: bytes) -> Metadata | None:
    """The content of a file that is as we write one, and sound; None for any other."""
    with suppress(OtherwiseError, FormatError, UnsafeError, LookupError, ValueError):
        return _Reading(data).metadata()
    return None


class _RowTemplate(NamedTuple):
    """What tensors of the same opcodes have in common, and what is said of their chunks before the places of those."""

    dtype: DType
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    indices: Sequence[bytes]


class _Reading:
    """A file while it is read.

    `texts` are what the memo holds from `_EMITTER.slots` on, `pushed` and `gets` the opcodes that push and fetch them;
    `types` are what opcodes fetch.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.texts: list[str] = []
        self.pushed: list[bytes] = []
        self.gets: list[bytes] = []
        self.types: dict[bytes, str] = {}

    def metadata(self) -> Metadata:
        body_bytes = len(self.data) - len(FRAME) - 8
        self._expect(FRAME + max(0, body_bytes).to_bytes(8, "little") + _EMITTER.head)
        self._fill_memo(_EMITTER.slots)
        self._expect(_OP.described)
        templates, count = self._described()
        names, files = self.texts[:count], self.texts[count:]
        self._expect(_OP.planned)
        paths = self._paths(names)
        self._expect(_OP.stored)
        places = self._places(templates, count)
        tensors = self._tensors(names, templates, places)
        objects = {
            name: self._object(k, count) for k, name in enumerate(names) if k >= len(tensors)
        }
        self._expect(_OP.last)
        used = {*places.names, *(object_.file for object_ in objects.values())}
        if not used:  # then there is nothing to gain
            raise OtherwiseError
        types = {record.dtype.torch for record in tensors.values()}
        in_order = files == sorted(used) and [*self.types.values()] == sorted(types)
        each_once = len(tensors.keys() | objects.keys()) == count
        if not in_order or not each_once or self.at != len(self.data):
            raise OtherwiseError
        return Metadata(tensors, objects, paths, dict(_extra()))

    def _expect(self, opcodes: bytes) -> None:
        if not self.data.startswith(opcodes, self.at):
            raise OtherwiseError
        self.at += len(opcodes)

    def _fill_memo(self, slot: int) -> None:
        """Names and element types, each put into the next place of the memo."""
        data, at = self.data, self.at
        while data[at] == _TEXT:
            put, get = memo_of(slot)
            first = at + 5
            at = first + int.from_bytes(data[at + 1 : first], "little")
            if not data.startswith(put, at):
                raise OtherwiseError
            self.texts.append(str(data[first:at], "utf-8", "surrogatepass"))
            self.pushed.append(data[first - 5 : at])
            self.gets.append(get)
            at += len(put)
            slot += 1
        self.at = at
        while data.startswith(b"ctorch\n", self.at):
            end = data.index(b"\n", first := self.at + 7)
            put, get = memo_of(slot)
            self.types[get] = data[first:end].decode("ascii")
            self.at = end + 1
            self._expect(put)
            slot += 1

    def _text(self) -> str:
        at = self.at + 5
        self.at = at + int.from_bytes(self.data[at - 4 : at], "little")
        return str(self.data[at : self.at], "utf-8", "surrogatepass")

    def _described(self) -> tuple[list[_RowTemplate], int]:
        """What each tensor is, in the order of their names; and how many names there are, of objects, too."""
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
                    template, described = self._template(*each.groups())
                    if described != opcodes:
                        raise OtherwiseError
                    known[opcodes] = template
                near = [opcodes, *near[: NEAR - 1]]
            if not data.startswith(get, at):
                break
            found.append(known[opcodes])
            at = first + len(opcodes)
        self.at, count = at, len(found)
        while count < len(self.gets) and data.startswith(self.gets[count] + _OP.object, self.at):
            self.at += len(self.gets[count] + _OP.object)
            count += 1
        return found, count

    def _paths(self, names: Sequence[str]) -> dict[str, tuple[str | int, ...]]:
        """The paths of names, which most often are the names themselves, in their order."""
        each = zip(self.gets[: len(names)], self.pushed, strict=False)
        whole = b"".join([get + b"(" + text + b"t" for get, text in each])
        if self.data.startswith(whole + _OP.stored, self.at):
            self.at += len(whole)
            return {name: (name,) for name in names}
        found = paths_of(self._paths_one_by_one(names))
        fetched = dict(zip(names, self.gets, strict=False))
        self._expect(b"".join(planned(found, fetched, {})))
        return found

    def _paths_one_by_one(self, names: Sequence[str]) -> dict[str, tuple[str | int, ...]]:
        data, at, found = self.data, self.at, dict[str, tuple[str | int, ...]]()
        while (op := data[self.at : self.at + 1]) in (b"h", b"j", b"X"):
            if op == b"X":
                name = self._text()
            else:
                get, self.at = self.at + 1, self.at + (2 if op == b"h" else 5)
                name = names[int.from_bytes(data[get : self.at], "little") - _EMITTER.slots]
            found[name] = self._path()
        self.at = at
        return found

    def _path(self) -> tuple[str | int, ...]:
        self._expect(b"(")
        steps: list[str | int] = []
        while (op := self.data[self.at : self.at + 1]) != b"t":
            steps.append(self._text() if op == b"X" else self._int())
        self.at += 1
        return tuple(steps)

    def _int(self) -> int:
        found = _EACH_INT.match(self.data, self.at)
        if found is None:
            raise OtherwiseError
        self.at = found.end()
        return _int_of(found[0])

    def _places(self, templates: Sequence[_RowTemplate], count: int) -> FileRanges:
        """Where the chunks of all tensors are, in their turn; `count` names stand before the files in the memo."""
        tensors = [(x.indices, get) for x, get in zip(templates, self.gets, strict=False)]
        rows, self.at = metadata_rows(self.data, self.at, _OP, tensors)
        columns = np.zeros((3, sum([len(x.indices) for x in templates])), np.int64)
        for alike in rows:
            alike.put([*columns], self.gets)
        slots, starts, lengths = columns
        if 2 * max(int(starts.max(initial=0)), int(lengths.max(initial=0))) > LARGEST:
            raise OtherwiseError
        used, files = np.unique(slots, return_inverse=True)
        names = [self._file(slot, count) for slot in used.tolist()]
        return FileRanges(names, files, starts, lengths)

    def _file(self, slot: int, count: int) -> str:
        """The file that a place of the memo holds, after so many names."""
        number = slot - _EMITTER.slots
        if number < count:
            raise OtherwiseError
        return check_name(self.texts[number], "the storage")

    def _tensors(
        self, names: Sequence[str], templates: Sequence[_RowTemplate], places: FileRanges
    ) -> dict[str, TensorRecord]:
        tensors: dict[str, TensorRecord] = {}
        at = 0
        for name, (dtype, shape, boxes, _) in zip(names, templates, strict=False):
            check_tensor_name(name)
            tensors[name] = TensorRecord(name, dtype, shape, Chunks(boxes, places, at))
            at += len(boxes)
        return tensors

    def _object(self, number: int, count: int) -> Entry:
        """Where the object is stored that has a number among so many names."""
        name, get, at = self.texts[number], self.gets[number], self.at
        check_tensor_name(name)
        self._expect(_OP.key + get + _OP.hint + b"N" + END + _OP.place)
        first, size, length = GETS[self.data[self.at]]
        slot = int.from_bytes(self.data[self.at + first : self.at + first + size], "little")
        file, self.at = self._file(slot, count), self.at + length
        self._expect(_OP.start)
        start = self._int()
        self._expect(_OP.length)
        found = Entry(name, file, start, self._int())
        written = _EMITTER.object_place(get, memo_of(slot)[1], found)
        if min(start, found.length_bytes) < 0 or 2 * max(start, found.length_bytes) > LARGEST:
            raise OtherwiseError
        self.at = at
        self._expect(written)
        return found

    def _template(self, dtype: bytes, size: bytes, listed: bytes) -> tuple[_RowTemplate, bytes]:
        """What tensors of these opcodes are, and that nothing is wrong with them but what their names may be; and the
        opcodes that we describe them by."""
        chunks = _patterns().chunk.findall(listed)
        boxes = tuple([Box(_size_of(offsets), _size_of(sizes)) for offsets, sizes in chunks])
        places = {("", box.offsets): ("", 0, 0) for box in boxes}
        if len(places) != len(boxes):
            raise OtherwiseError
        each = [chunk_of(box.offsets, box.shape) for box in boxes]
        said, shape = BY_TORCH[self.types[dtype]], _size_of(size)
        found = type_of("", said, shape)
        chunks_of("", shape, each, places, [], {})
        alike = _EMITTER.alike(dtype, shape, boxes)
        return _RowTemplate(found, shape, boxes, alike.indices), alike.described


def _size_of(opcodes: bytes) -> tuple[int, ...]:
    ints = _EACH_INT.findall(opcodes, len(_EMITTER.size_class) + 1, len(opcodes) - 3)
    return tuple(map(_int_of, ints))


def _int_of(op: bytes) -> int:
    if len(op) == 2:
        return op[1]
    return int.from_bytes(op[1:] if len(op) == 5 else op[2:], "little", signed=True)


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

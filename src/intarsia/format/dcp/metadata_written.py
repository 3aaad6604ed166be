"""Metadata just as `write_metadata` writes it, read as columns: what recurs is looked at once.

What was found is written again, and has to be every byte of the file, so that a pickle's own machine would find the
same.  Whatever is otherwise, or wrong, is left to `load_inert`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from intarsia.dtypes import BY_TORCH
from intarsia.errors import FormatError, UnsafeError
from intarsia.format.dcp.metadata import (
    LARGEST,
    Metadata,
    TensorRecord,
    check_tensor_name,
    chunk_of,
    paths_of,
    read_metadata,
    tensor_of,
)
from intarsia.format.dcp.metadata_write import END, FRAME, Emitter, memo_of, text_of, write_metadata
from intarsia.mesh import Box
from intarsia.planning.chunks import Chunks, Numbers, Places
from intarsia.planning.manifest import Entry
from intarsia.store.reading.file_names import check_name

_GET, _INT = rb"(?:h.|j....)", rb"(?:K.|J....|\x8a\t.{9})"
_EACH_INT = re.compile(_INT, re.DOTALL)
_EMITTER = Emitter()
_OP = _EMITTER.opcodes


class _OtherwiseError(Exception):
    """The file is not as we write it."""


def read_written(data: bytes) -> Metadata | None:
    """The content of a file that is as we write one, and sound; None for any other."""
    with suppress(_OtherwiseError, FormatError, UnsafeError, LookupError, ValueError):
        return _Reading(data).metadata()
    return None


_Kind = tuple[bytes, bytes, bytes]
"""The opcodes of a tensor's element type, of its size and of its chunks."""


_GETS = {b"h"[0]: (1, "u1", 2), b"j"[0]: (1, "<u4", 5)}
_INTS = {b"K"[0]: (1, "u1", 2), b"J"[0]: (1, "<i4", 5), 0x8A: (2, "<i8", 11)}
"""Where in an opcode its number begins, of which type it is, and how long the opcode is."""


class _Reading:
    """A file while it is read; `texts` and `types` are what opcodes fetch from the memo."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.texts: dict[bytes, str] = {}
        self.types: dict[bytes, str] = {}

    def metadata(self) -> Metadata:
        body_bytes = len(self.data) - len(FRAME) - 8
        self._expect(FRAME + max(0, body_bytes).to_bytes(8, "little") + _EMITTER.head)
        self._fill_memo(_EMITTER.slots)
        self._expect(_OP.described)
        described = self._described()
        self._expect(_OP.planned)
        paths = self._paths()
        self._expect(_OP.stored)
        found = self._matched(described, self._stored(), paths)
        self.at = 0
        for opcodes in Emitter().pieces(found):
            self._expect(opcodes)
        if self.at != len(self.data):
            raise _OtherwiseError
        return found

    def _expect(self, opcodes: bytes) -> None:
        if not self.data.startswith(opcodes, self.at):
            raise _OtherwiseError
        self.at += len(opcodes)

    def _fill_memo(self, slot: int) -> None:
        """Names and element types, each put into the next place of the memo."""
        data = self.data
        while (op := data[self.at : self.at + 1]) in (b"X", b"c"):
            put, get = memo_of(slot)
            if op == b"X":
                self.texts[get] = self._text()
            else:
                self._expect(b"ctorch\n")
                end = data.index(b"\n", self.at)
                self.types[get], self.at = data[self.at : end].decode("ascii"), end + 1
            self._expect(put)
            slot += 1

    def _text(self) -> str:
        at = self.at + 5
        self.at = at + int.from_bytes(self.data[at - 4 : at], "little")
        return str(self.data[at : self.at], "utf-8", "surrogatepass")

    def _described(self) -> dict[bytes, _Kind | None]:
        """By the opcodes of its name, those of each tensor; None for each object."""
        found: dict[bytes, _Kind | None] = {}
        match, data, count = _patterns().described.match, self.data, 0
        while (each := match(data, self.at)) is not None:
            name, dtype, size, chunks = each.groups()
            found[name] = None if dtype is None else (dtype, size, chunks)
            self.at = each.end()
            count += 1
        if len({self.texts[name] for name in found}) != count:
            raise _OtherwiseError
        return found

    def _paths(self) -> dict[str, tuple[str | int, ...]]:
        data, found = self.data, dict[str, tuple[str | int, ...]]()
        while (op := data[self.at : self.at + 1]) in (b"h", b"j", b"X"):
            if op == b"X":
                name = self._text()
            else:
                get = data[self.at : self.at + (2 if op == b"h" else 5)]
                name, self.at = self.texts[get], self.at + len(get)
            if data.startswith(itself := b"(" + text_of(name) + b"t", self.at):
                found[name], self.at = (name,), self.at + len(itself)
            else:
                found[name] = self._path()
        return paths_of(found)

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
            raise _OtherwiseError
        self.at = found.end()
        return _int_of(found[0])

    def _stored(self) -> Places:
        """Where everything is stored, in its turn."""
        found = _patterns().place.finditer(self.data, self.at)
        at = np.fromiter((each.end() for each in found), np.int64)
        slots, at = self._numbers(at, _GETS)
        starts, at = self._numbers(at + len(_OP.start), _INTS)
        lengths, _ = self._numbers(at + len(_OP.length), _INTS)
        if not len(at) or min(starts.min(), lengths.min()) < 0:
            raise _OtherwiseError
        if 2 * max(int(starts.max()), int(lengths.max())) > LARGEST:
            raise _OtherwiseError
        used, files = np.unique(slots, return_inverse=True)
        texts = [self.texts[memo_of(slot)[1]] for slot in used.tolist()]
        return Places([check_name(x, "the storage") for x in texts], files, starts, lengths)

    def _numbers(
        self, at: Numbers, forms: Mapping[int, tuple[int, str, int]]
    ) -> tuple[Numbers, Numbers]:
        """The numbers that opcodes at these places hold, and the places after those opcodes."""
        held = np.frombuffer(self.data, np.uint8)
        ops, values, ends = held.take(at, mode="clip"), np.full(len(at), -1), at.copy()
        for op, (first, kind, length) in forms.items():
            mine, bytes_of = np.flatnonzero(ops == op), np.arange(np.dtype(kind).itemsize)
            near = held.take(at[mine, None] + first + bytes_of, mode="clip")
            values[mine], ends[mine] = near.view(kind)[:, 0], at[mine] + length
        return values, ends

    def _matched(
        self,
        described: Mapping[bytes, _Kind | None],
        places: Places,
        paths: dict[str, tuple[str | int, ...]],
    ) -> Metadata:
        """What is described, where each chunk of it is stored in its turn, and then each object."""
        tensors: dict[str, TensorRecord] = {}
        objects: dict[str, Entry] = {}
        templates: dict[_Kind, tuple[TensorRecord, tuple[Box, ...]]] = {}
        at = 0
        for op, kind in described.items():
            name = self.texts[op]
            check_tensor_name(name)
            if kind is None:
                ((file,), (start,), (length,)) = places.lists(at, at + 1)
                objects[name] = Entry(name, file, start, length)
                at += 1
                continue
            alike = templates.get(kind)
            if alike is None:
                alike = templates[kind] = self._template(name, kind)
            record, boxes = alike
            chunks = Chunks(boxes, places, at)
            tensors[name] = TensorRecord(name, record.dtype, record.shape, chunks)
            at += len(boxes)
        if at != len(places.starts):
            raise _OtherwiseError
        return Metadata(tensors, objects, paths, dict(_extra()))

    def _template(self, name: str, kind: _Kind) -> tuple[TensorRecord, tuple[Box, ...]]:
        """What all tensors of these opcodes are, checked for the first of them, and their boxes."""
        dtype, size, listed = kind
        chunks = _patterns().chunk.findall(listed)
        boxes = tuple([Box(_size_of(offsets), _size_of(sizes)) for offsets, sizes in chunks])
        places = {(name, box.offsets): ("", 0, 0) for box in boxes}
        if len(places) != len(boxes):
            raise _OtherwiseError
        each = [chunk_of(box.offsets, box.shape) for box in boxes]
        said = BY_TORCH[self.types[dtype]]
        return tensor_of(name, said, _size_of(size), each, places, [], {}), boxes


def _size_of(opcodes: bytes) -> tuple[int, ...]:
    ints = _EACH_INT.findall(opcodes, len(_EMITTER.size_class) + 1, len(opcodes) - 3)
    return tuple(map(_int_of, ints))


def _int_of(op: bytes) -> int:
    if len(op) == 2:
        return op[1]
    return int.from_bytes(op[1:] if len(op) == 5 else op[2:], "little", signed=True)


class _Patterns(NamedTuple):
    """What is described, one chunk of it, and what stands before each place, as they follow each other."""

    described: re.Pattern[bytes]
    chunk: re.Pattern[bytes]
    place: re.Pattern[bytes]


@cache
def _patterns() -> _Patterns:
    op = type(_OP)(*map(re.escape, _OP))
    size = rb"%b\(%b*+t\x85R" % (re.escape(_EMITTER.size_class), _INT)
    chunk = op.chunk + b"(%b)" % size + op.sizes + b"(%b)" % size + END
    listed = op.chunk + size + op.sizes + size + END
    tensor = op.tensor + b"(%b)" % _GET + op.size + b"(%b)" % size + op.chunks
    tensor += b"((?:%b)*+)" % listed + op.listed
    described = b"(%b)(?:%b|%b)" % (_GET, tensor, op.object)
    return _Patterns(*(re.compile(x, re.DOTALL) for x in (described, chunk, op.place)))


@cache
def _extra() -> Mapping[str, Any]:
    """What we write beside tensors, objects and paths."""
    return read_metadata(write_metadata(Metadata({}, {})), "").extra

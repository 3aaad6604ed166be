"""Metadata just as `write_metadata` writes it, read as columns: what recurs is looked at once.

What was found is written again, and has to be every byte of the file, so that a pickle's own machine would find the
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
_TEXT = b"X"[0]
_EMITTER = Emitter()
_OP = _EMITTER.opcodes


class _OtherwiseError(Exception):
    """The file is not as we write it."""


def read_written(data: bytes) -> Metadata | None:
    """The content of a file that is as we write one, and sound; None for any other."""
    with suppress(_OtherwiseError, FormatError, UnsafeError, LookupError, ValueError):
        return _Reading(data).metadata()
    return None


class _Template(NamedTuple):
    """What tensors of the same opcodes have in common."""

    dtype: DType
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]


_GETS = {b"h"[0]: (1, "u1", 2), b"j"[0]: (1, "<u4", 5)}
_INTS = {b"K"[0]: (1, "u1", 2), b"J"[0]: (1, "<i4", 5), 0x8A: (2, "<i8", 11)}
"""Where in an opcode its number begins, of which type it is, and how long the opcode is."""


class _Reading:
    """A file while it is read; `texts` are what the memo holds from `_EMITTER.slots` on, and `types` what opcodes fetch."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.texts: list[str] = []
        self.types: dict[bytes, str] = {}

    def metadata(self) -> Metadata:
        """What is found at the places at which we write it: whether all else is there, too, is seen at the end."""
        body_bytes = len(self.data) - len(FRAME) - 8
        self._expect(FRAME + max(0, body_bytes).to_bytes(8, "little") + _EMITTER.head)
        self._fill_memo(_EMITTER.slots)
        self._expect(_OP.described)
        described = self._described()
        self._expect(_OP.planned)
        paths = self._paths(len(described))
        self._expect(_OP.stored)
        found = self._matched(described, self._stored(), paths)
        if write_metadata(found) != self.data:
            raise _OtherwiseError
        return found

    def _expect(self, opcodes: bytes) -> None:
        if not self.data.startswith(opcodes, self.at):
            raise _OtherwiseError
        self.at += len(opcodes)

    def _fill_memo(self, slot: int) -> None:
        """Names and element types, each put into the next place of the memo."""
        data, at, texts = self.data, self.at, self.texts
        while data[at] == _TEXT:
            first = at + 5
            at = first + int.from_bytes(data[at + 1 : first], "little")
            texts.append(str(data[first:at], "utf-8", "surrogatepass"))
            at += 3 if slot < 256 else 6
            slot += 1
        self.at = at
        while data.startswith(b"ctorch\n", self.at):
            end = data.index(b"\n", first := self.at + 7)
            put, get = memo_of(slot)
            self.types[get] = data[first:end].decode("ascii")
            self.at = end + 1 + len(put)
            slot += 1

    def _text(self) -> str:
        at = self.at + 5
        self.at = at + int.from_bytes(self.data[at - 4 : at], "little")
        return str(self.data[at : self.at], "utf-8", "surrogatepass")

    def _described(self) -> list[_Template | None]:
        """What each tensor is, in the order of their names; None for each object."""
        found: list[_Template | None] = []
        alike: dict[bytes, dict[bytes, _Template]] = {}
        match, data, at = _patterns().tensor.match, self.data, self.at
        for slot in range(_EMITTER.slots, _EMITTER.slots + len(self.texts)):
            if data[at] not in b"hj":
                break
            at += 2 if slot < 256 else 5
            if (each := match(data, at)) is None:
                found.append(None)
                at += len(_OP.object)
                continue
            known, first = alike.setdefault(each[0], {}), each.end()
            opcodes = next((x for x in known if data.startswith(x, first)), None)
            if opcodes is None:
                if (listed := _patterns().chunks.match(data, first)) is None:
                    raise _OtherwiseError
                opcodes = listed[0]
                known[opcodes] = self._template(each[1], each[2], listed[1])
            found.append(known[opcodes])
            at = first + len(opcodes)
        self.at = at
        return found

    def _paths(self, names: int) -> dict[str, tuple[str | int, ...]]:
        """The paths of as many names, which most often are the names themselves, in their order."""
        own, data = self.texts[:names], self.data
        gets = (memo_of(slot)[1] for slot in range(_EMITTER.slots, _EMITTER.slots + names))
        each = [get + b"(" + text_of(name) + b"t" for get, name in zip(gets, own, strict=True)]
        if data.startswith((whole := b"".join(each)) + b"u", self.at):
            self.at += len(whole)
            return {name: (name,) for name in own}
        found: dict[str, tuple[str | int, ...]] = {}
        while (op := data[self.at : self.at + 1]) in (b"h", b"j", b"X"):
            if op == b"X":
                name = self._text()
            else:
                get, self.at = self.at + 1, self.at + (2 if op == b"h" else 5)
                name = own[int.from_bytes(data[get : self.at], "little") - _EMITTER.slots]
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
        before = self.data[self.at :].split(_OP.place)[:-1]
        at = self.at + np.cumsum(np.fromiter(map(len, before), np.int64) + len(_OP.place))
        slots, at = self._numbers(at, _GETS)
        starts, at = self._numbers(at + len(_OP.start), _INTS)
        lengths, _ = self._numbers(at + len(_OP.length), _INTS)
        if not len(at) or min(starts.min(), lengths.min()) < 0:
            raise _OtherwiseError
        if 2 * max(int(starts.max()), int(lengths.max())) > LARGEST:
            raise _OtherwiseError
        used, files = np.unique(slots, return_inverse=True)
        texts = [self.texts[slot] for slot in (used - _EMITTER.slots).tolist()]
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
        described: Sequence[_Template | None],
        places: Places,
        paths: dict[str, tuple[str | int, ...]],
    ) -> Metadata:
        """What is described, where each chunk of it is stored in its turn, and then each object."""
        tensors: dict[str, TensorRecord] = {}
        objects: dict[str, Entry] = {}
        at = 0
        for name, template in zip(self.texts, described, strict=False):
            check_tensor_name(name)
            if template is None:
                ((file,), (start,), (length,)) = places.lists(at, at + 1)
                objects[name] = Entry(name, file, start, length)
                at += 1
                continue
            dtype, shape, boxes = template
            tensors[name] = TensorRecord(name, dtype, shape, Chunks(boxes, places, at))
            at += len(boxes)
        if at != len(places.starts):
            raise _OtherwiseError
        return Metadata(tensors, objects, paths, dict(_extra()))

    def _template(self, dtype: bytes, size: bytes, listed: bytes) -> _Template:
        """What tensors of these opcodes are, and that nothing is wrong with them but what their names may be."""
        chunks = _patterns().chunk.findall(listed)
        boxes = tuple([Box(_size_of(offsets), _size_of(sizes)) for offsets, sizes in chunks])
        places = {("", box.offsets): ("", 0, 0) for box in boxes}
        if len(places) != len(boxes):
            raise _OtherwiseError
        each = [chunk_of(box.offsets, box.shape) for box in boxes]
        said = BY_TORCH[self.types[dtype]]
        found = tensor_of("", said, _size_of(size), each, places, [], {})
        return _Template(found.dtype, found.shape, boxes)


def _size_of(opcodes: bytes) -> tuple[int, ...]:
    ints = _EACH_INT.findall(opcodes, len(_EMITTER.size_class) + 1, len(opcodes) - 3)
    return tuple(map(_int_of, ints))


def _int_of(op: bytes) -> int:
    if len(op) == 2:
        return op[1]
    return int.from_bytes(op[1:] if len(op) == 5 else op[2:], "little", signed=True)


class _Patterns(NamedTuple):
    """What is said of a tensor before its chunks, all of these to the end, and one of them."""

    tensor: re.Pattern[bytes]
    chunks: re.Pattern[bytes]
    chunk: re.Pattern[bytes]


@cache
def _patterns() -> _Patterns:
    op = type(_OP)(*map(re.escape, _OP))
    size = rb"%b\(%b*+t\x85R" % (re.escape(_EMITTER.size_class), _INT)
    tensor = op.tensor + b"(%b)" % _GET + op.size + b"(%b)" % size + op.chunks
    listed = op.chunk + size + op.sizes + size + END
    chunk = op.chunk + b"(%b)" % size + op.sizes + b"(%b)" % size + END
    chunks = b"((?:%b)*+)" % listed + op.listed
    return _Patterns(*(re.compile(x, re.DOTALL) for x in (tensor, chunks, chunk)))


@cache
def _extra() -> Mapping[str, Any]:
    """What we write beside tensors, objects and paths."""
    return read_metadata(write_metadata(Metadata({}, {})), "").extra

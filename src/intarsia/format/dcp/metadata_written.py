"""Metadata just as `write_metadata` writes it, read as columns: what recurs is looked at once.

Every byte is checked to be what is written there, so that a pickle's own machine would find the same.
Whatever is otherwise, or wrong, is left to `load_inert`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

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
from intarsia.planning.manifest import Chunk, Entry
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


class _Template(NamedTuple):
    """What tensors have in common that the same opcodes describe."""

    record: TensorRecord
    offsets: Sequence[bytes]
    boxes: Sequence[Box]


class _Stored(NamedTuple):
    """What is stored, in columns: opcodes of names and offsets, files, bytes of those."""

    names: Sequence[bytes]
    offsets: Sequence[bytes]
    files: Sequence[str]
    starts: Sequence[int]
    lengths: Sequence[int]


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
        return self._matched(described, self._stored(), paths)

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

    def _stored(self) -> _Stored:
        data, end = self.data, len(self.data) - len(_OP.last)
        found = _patterns().stored.findall(data, self.at, end) if data.endswith(_OP.last) else []
        # Matches that together are as long as all there is leave nothing out between them.
        if not found or sum([len(each[0]) for each in found]) != end - self.at:
            raise _OtherwiseError
        _, names, offsets, files, starts, lengths = zip(*found, strict=True)
        held = {op: check_name(self.texts[op], "the storage") for op in {*files}}
        ints = {op: _int_of(op) for op in {*starts, *lengths}}
        if min(ints.values()) < 0 or 2 * max(ints.values()) > LARGEST:
            raise _OtherwiseError
        first, long = [ints[op] for op in starts], [ints[op] for op in lengths]
        return _Stored(names, offsets, [held[op] for op in files], first, long)

    def _matched(
        self,
        described: Mapping[bytes, _Kind | None],
        stored: _Stored,
        paths: dict[str, tuple[str | int, ...]],
    ) -> Metadata:
        """What is described, where each chunk of it is stored in its turn, and then each object."""
        tensors: dict[str, TensorRecord] = {}
        objects: dict[str, Entry] = {}
        templates: dict[_Kind, _Template] = {}
        names: list[bytes] = []
        offsets: list[bytes] = []
        *_, files, starts, lengths = stored
        at = 0
        for op, kind in described.items():
            name, end = self.texts[op], at + 1
            check_tensor_name(name)
            if kind is None:
                objects[name] = Entry(name, files[at], starts[at], lengths[at])
                offsets.append(b"")
            else:
                alike = templates.get(kind)
                if alike is None:
                    alike = templates[kind] = self._template(name, kind)
                record, said, boxes = alike
                end = at + len(boxes)
                places = zip(boxes, files[at:end], starts[at:end], lengths[at:end], strict=True)
                chunks = tuple([Chunk(*place) for place in places])
                tensors[name] = TensorRecord(name, record.dtype, record.shape, chunks)
                offsets += said
            names += [op] * (end - at)
            at = end
        if [*stored.names] != names or [*stored.offsets] != offsets:
            raise _OtherwiseError
        return Metadata(tensors, objects, paths, dict(_extra()))

    def _template(self, name: str, kind: _Kind) -> _Template:
        """What all tensors of these opcodes are, checked for the first of them."""
        dtype, size, listed = kind
        chunks = _patterns().chunk.findall(listed)
        boxes = [Box(_size_of(offsets), _size_of(sizes)) for offsets, sizes in chunks]
        places = {(name, box.offsets): ("", 0, 0) for box in boxes}
        if len(places) != len(boxes):
            raise _OtherwiseError
        each = [chunk_of(box.offsets, box.shape) for box in boxes]
        said = BY_TORCH[self.types[dtype]]
        record = tensor_of(name, said, _size_of(size), each, places, [], {})
        return _Template(record, [offsets for offsets, _ in chunks], boxes)


def _size_of(opcodes: bytes) -> tuple[int, ...]:
    ints = _EACH_INT.findall(opcodes, len(_EMITTER.size_class) + 1, len(opcodes) - 3)
    return tuple(map(_int_of, ints))


def _int_of(op: bytes) -> int:
    if len(op) == 2:
        return op[1]
    return int.from_bytes(op[1:] if len(op) == 5 else op[2:], "little", signed=True)


class _Patterns(NamedTuple):
    """What is described, one chunk of it, and what is stored, as they follow each other."""

    described: re.Pattern[bytes]
    chunk: re.Pattern[bytes]
    stored: re.Pattern[bytes]


@cache
def _patterns() -> _Patterns:
    op = type(_OP)(*map(re.escape, _OP))
    size = rb"%b\(%b*+t\x85R" % (re.escape(_EMITTER.size_class), _INT)
    chunk = op.chunk + b"(%b)" % size + op.sizes + b"(%b)" % size + END
    listed = op.chunk + size + op.sizes + size + END
    tensor = op.tensor + b"(%b)" % _GET + op.size + b"(%b)" % size + op.chunks
    tensor += b"((?:%b)*+)" % listed + op.listed
    described = b"(%b)(?:%b|%b)" % (_GET, tensor, op.object)
    stored = op.key + b"(%b)" % _GET + op.hint + b"(?:%b%b(%b)|N)" % (_INT, op.start, size)
    stored += END + op.place + b"(%b)" % _GET + op.start + b"(%b)" % _INT
    stored += op.length + b"(%b)" % _INT + END
    each = (re.compile(x, re.DOTALL) for x in (described, chunk, b"(%b)" % stored))
    return _Patterns(*each)


@cache
def _extra() -> Mapping[str, Any]:
    """What we write beside tensors, objects and paths."""
    return read_metadata(write_metadata(Metadata({}, {})), "").extra

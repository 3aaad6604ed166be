"""The header of a safetensors file, checked as its specification demands.

Eight bytes of length, a JSON object, then the tensors' bytes: each byte belongs to exactly
one tensor, so a sound header has no hole, no overlap, and ends where the file ends.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from math import prod
from operator import itemgetter
from typing import Any

from intarsia.dtypes import DType, dtype_of_header
from intarsia.errors import FormatError, UsageError
from intarsia.format.base import PAGE_BYTES
from intarsia.format.complaint import Complain, Complaint, refuse
from intarsia.format.strict_json import parse_json
from intarsia.format.torch_file.tensor_bounds import MAX_AXES, MAX_NAME, bytes_of
from intarsia.mesh import Shape
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.headers_once import made_once

MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"
_DAMAGED = "the file is damaged or truncated: copy it again from its source"


def read_header(
    folder: Folder, file: str, complain: Complain = refuse
) -> tuple[list[WholeTensor], dict[str, str]]:
    """The rows of a file's header in the order of their bytes, and its free-form metadata."""
    where, size = str(folder.root / file), folder.size(file)
    if size < 8:
        raise FormatError(
            f"{where} has {size} bytes, a header needs at least 8",
            hint=_DAMAGED,
            kind="file-too-short",
        )
    length = int.from_bytes(folder.read(file, 0, 8), "little")
    if 8 + length > size:
        raise FormatError(
            f"{where}: the header claims {length:,} bytes, the file has {size - 8:,} after its length",
            hint=_DAMAGED,
            kind="file-too-short",
        )
    if length > MAX_HEADER_BYTES:
        raise FormatError(
            f"{where}: the header claims {length:,} bytes, and safetensors reads no more than"
            f" {MAX_HEADER_BYTES:,}",
            hint="the file is damaged or no safetensors: copy it again from its source",
        )
    data = folder.read(file, 8, length)
    rows, metadata = made_once((where, file), data, lambda: _parse(data, where, file))
    try:
        _check_tiling(rows, 8 + length, size, where)
    except FormatError as error:
        complain(Complaint(error, (file,)))
    return rows, metadata


def _parse(data: bytes, where: str, file: str) -> tuple[list[WholeTensor], dict[str, str]]:
    raw = parse_json(data, f"{where}: the header", hint=_DAMAGED)
    if not isinstance(raw, dict) or not data.startswith(b"{"):
        raise FormatError(f"{where}: the header is not a JSON object", hint=_DAMAGED)
    metadata = raw.pop(_METADATA, None)
    if metadata is None:  # safetensors reads null as none, too
        metadata = {}
    if not isinstance(metadata, dict) or {*map(type, metadata.values())} - {str}:
        raise FormatError(f"{where}: __metadata__ is not an object of texts", hint=_DAMAGED)
    return _rows(raw, 8 + len(data), where, file), metadata


_FIELDS = itemgetter("dtype", "shape", "data_offsets")
_whole_tensor = partial(tuple.__new__, WholeTensor)
"""As the class, which looks at its arguments one by one; takes a third of the time."""

_Kind = tuple[DType, Shape, int]
"""What tensors of one header have in common: their element type, their shape, the bytes of one."""


def _rows(raw: Mapping[str, Any], base_bytes: int, where: str, file: str) -> list[WholeTensor]:
    """The tensors that a header names, in the order of their bytes."""
    columns = _columns(raw, where)
    kinds: dict[tuple[str, Shape], _Kind] = {}
    rows, in_order, last = [], True, 0
    for name, said, sizes, (begin, end) in zip(raw, *columns, strict=True):
        key = said, tuple(sizes)
        if (kind := kinds.get(key)) is None:
            kind = kinds[key] = _kind(*key, _at(where, name))
        dtype, shape, needed = kind
        if end - begin != needed:
            raise FormatError(
                f"{_at(where, name)}: {dtype} {list(shape)} needs {needed:,} bytes,"
                f" data_offsets give {end - begin:,}",
                hint=_DAMAGED,
            )
        in_order, last = in_order and begin >= last, end
        rows.append(_whole_tensor((name, dtype, shape, base_bytes + begin, needed, file)))
    return rows if in_order else sorted(rows, key=itemgetter(3, 4))


def _columns(raw: Mapping[str, Any], where: str) -> Sequence[Sequence[Any]]:
    """The types, shapes and offsets of tensors, each of which passes `_check_row`."""
    columns: Sequence[Sequence[Any]] = ()
    with suppress(KeyError, TypeError):
        columns = [*zip(*map(_FIELDS, raw.values()), strict=True)] or ((), (), ())
    if not (columns and _are_sound(raw, *columns)):
        for name, value in raw.items():
            _check_row(name, value, where)
    return columns


def _are_sound(
    names: Iterable[str], said: Sequence[Any], shapes: Sequence[Any], offsets: Sequence[Any]
) -> bool:
    """Whether all tensors pass `_check_row`, asked of all of them at once."""
    if {*map(type, shapes), *map(type, offsets)} - {list} or {*map(type, said)} - {str}:
        return False
    axes = max(map(len, shapes), default=0)
    if axes > MAX_AXES or {*map(len, offsets)} - {2} or max(map(len, names), default=0) > MAX_NAME:
        return False
    counts = [*chain.from_iterable(shapes), *chain.from_iterable(offsets)]
    return not {*map(type, counts)} - {int} and min(counts, default=0) >= 0 and max(counts, default=0) < 1 << 63  # fmt: skip


def _check_row(name: str, value: Any, where: str) -> None:
    if len(name) > MAX_NAME:
        text = f"{_at(where, name)} is the beginning of a name of {len(name):,} characters"
        raise FormatError(text, hint=_DAMAGED)
    try:
        shape, offsets, said = value["shape"], value["data_offsets"], value["dtype"]
    except (KeyError, TypeError) as error:
        text = f"{_at(where, name)} has no dtype, shape and data_offsets"
        raise FormatError(text, hint=_DAMAGED) from error
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2 or type(said) is not str:
        shown = [reprlib.repr(x) for x in (said, shape, offsets)]
        raise FormatError(
            f"{_at(where, name)} has dtype {shown[0]}, shape {shown[1]} and data_offsets {shown[2]}",
            hint=_DAMAGED,
        )


def _at(where: str, name: str) -> str:
    return f"{where}: {name[:MAX_NAME]!r}"


def _kind(said: str, shape: Shape, at: str) -> _Kind:
    dtype = dtype_of_header(said[:MAX_NAME], at)
    elements = _elements(shape, dtype, at)
    return dtype, elements, bytes_of(elements, dtype.itemsize, at)


def _elements(shape: Shape, dtype: DType, at: str) -> Shape:
    """The elements on each axis; on the last, several numbers may share one."""
    if dtype.packs == 1:
        return shape
    if not shape or shape[-1] % dtype.packs:
        raise FormatError(
            f"{at}: {dtype} {list(shape)} does not fill whole bytes on its last axis",
            hint="types of less than a byte can be read only where rows are whole bytes",
        )
    return (*shape[:-1], shape[-1] // dtype.packs)


def _counts(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MAX_AXES:
        return False
    return all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _check_tiling(rows: Sequence[WholeTensor], base_bytes: int, size: int, where: str) -> None:
    at = base_bytes
    for row in rows:
        if row.start_bytes != at:
            overlaps = row.start_bytes < at
            what = "overlaps the tensor before it" if overlaps else "leaves a hole before it"
            raise FormatError(
                f"{where}: {row.name!r} starts at byte {row.start_bytes:,}, expected {at:,}: it {what}",
                hint=_DAMAGED,
                kind="bytes-overlap" if overlaps else None,
            )
        at += row.length_bytes
    if at != size:
        raise FormatError(
            f"{where}: tensors end at byte {at:,}, the file at {size:,}",
            hint=_DAMAGED,
            kind="file-too-short" if size < at else None,
        )


def make_header(rows: Sequence[tuple[str, DType, Shape]], metadata: Mapping[str, str]) -> bytes:
    """The header bytes for tensors laid one after another.

    Padding with spaces, which the specification allows, puts the first tensor at a page boundary:
    tensors that start there are written, and mapped, fastest.
    """
    if any(name == _METADATA for name, *_ in rows):
        raise UsageError(
            f"a tensor is called {_METADATA}, a name that safetensors keeps for itself",
            hint="give it another name in the source, or write dcp, which has no such name",
        )
    raw: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name, dtype, shape in rows:
        end = at + prod(shape) * dtype.itemsize
        numbers = [*shape[:-1], shape[-1] * dtype.packs] if shape else []
        raw[name] = {"dtype": dtype.name, "shape": numbers, "data_offsets": [at, end]}
        at = end
    text = json.dumps(raw, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-(8 + len(text)) % PAGE_BYTES)
    return len(text).to_bytes(8, "little") + text

"""Values out of a pickle as plain ones: numbers, texts, and containers of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from struct import calcsize, unpack
from typing import Any

from intarsia.errors import FormatError
from intarsia.format.torch_file.inert import Array, Inert, InertTensor

DROPPED = object()
MAX_PLAIN, MAX_PLAIN_DEPTH = 1 << 18, 64


def plain(value: Any) -> Any:
    """What of a value can be written again: numbers, texts, and containers of them."""
    return _plain(value, iter(range(MAX_PLAIN)), MAX_PLAIN_DEPTH)


def all_plain(value: Any) -> Any:
    """A value that can be written again as it is; `DROPPED` where something of it cannot."""
    return _plain(value, iter(range(MAX_PLAIN)), MAX_PLAIN_DEPTH, strict=True)


def wholly_plain(value: Any) -> Any:
    """All of a value as plain ones, to be compared; `DROPPED` where that would leave something out."""
    return _plain(value, iter(range(MAX_PLAIN)), MAX_PLAIN_DEPTH, whole=True)


def _plain(
    value: Any, left: Iterator[int], depth: int, *, whole: bool = False, strict: bool = False
) -> Any:
    """A pickle's lists may hold one another many times over, so what they come to is counted."""
    if next(left, None) is None or depth == 0:
        raise FormatError(
            f"stored arguments of more than {MAX_PLAIN:,} values, or nested deeper than"
            f" {MAX_PLAIN_DEPTH}",
            hint="leave them out with --optimizer drop",
        )
    value = _said(value) if whole else _of_numpy(value) if isinstance(value, Inert) else value
    if isinstance(value, Mapping):
        named = ((k, v) for k, v in value.items() if type(k) in (str, int))
        pairs = ((k, _plain(v, left, depth - 1, whole=whole, strict=strict)) for k, v in named)
        kept = {k: v for k, v in pairs if v is not DROPPED}
        return DROPPED if (whole or strict) and len(kept) < len(value) else kept
    if type(value) in (list, tuple):
        items = [_plain(v, left, depth - 1, whole=whole, strict=strict) for v in value]
        return DROPPED if any(i is DROPPED for i in items) else type(value)(items)
    types = (type(None), bool, int, float, str, *((bytes,) if whole else ()))
    return value if type(value) in types else DROPPED


def _said(value: Any) -> Any:
    """What a value says that is no plain one, in plain containers; the names of storages in their files do not count."""
    if isinstance(value, Mapping):
        return value if {*map(type, value)} <= {str, int} else [*value.items()]
    if isinstance(value, InertTensor):
        x = value.storage
        place = value.shape, value.stride, value.storage_offset
        return value.dtype.name, *place, str(x.dtype), x.numel, x.data
    if isinstance(value, Array):
        return value.dtype, value.shape, value.data
    if isinstance(value, Inert):
        return value.name, value.args, value.state, value.items, [*value.entries.items()]
    return sorted(value, key=repr) if type(value) in (set, frozenset) else value


_SCALARS = ("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar")
_KINDS = {
    "f8": "<d", "f4": "<f", "f2": "<e", "i8": "<q", "i4": "<i", "i2": "<h", "i1": "<b", "u8": "<Q",
    "u4": "<I", "u2": "<H", "u1": "<B", "b1": "<?",
}  # fmt: skip
"""How NumPy and `struct` call the types of numbers that Python has."""


def _of_numpy(value: Inert) -> Any:
    """The number that one of NumPy's is; any other value as it is."""
    if value.name not in _SCALARS or [*map(type, value.args[1:])] != [bytes]:
        return value
    dtype, data = value.args
    said, state = (dtype.args, dtype.state) if isinstance(dtype, Inert) else ((), ())
    form = _KINDS.get(said[0]) if said and isinstance(said[0], str) else None
    little = isinstance(state, tuple) and state[1:2] in (("<",), ("|",))
    if form is None or not little or len(data) != calcsize(form):
        return value
    return unpack(form, data)[0]


_FORMS = {"I64": "<q", "I32": "<i", "F32": "<f", "F64": "<d"}


def number_in(value: Any) -> Any:
    """The number that a tensor of one element holds; any other value as it is."""
    form = _FORMS.get(value.dtype.name) if isinstance(value, InertTensor) else None
    if form is None or prod(value.shape) != 1:
        return value
    start, size = value.storage_offset * value.dtype.itemsize, value.dtype.itemsize
    held = (value.storage.data or b"")[max(start, 0) : start + size]
    return unpack(form, held)[0] if len(held) == size else value

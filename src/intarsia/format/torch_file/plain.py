"""Values out of a pickle as plain ones: numbers, texts, and containers of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from struct import unpack
from typing import Any

from intarsia.errors import FormatError
from intarsia.format.torch_file.inert import Tensor

DROPPED = object()
MAX_PLAIN, MAX_PLAIN_DEPTH = 1 << 18, 64


def plain(value: Any) -> Any:
    """What of a value can be written again: numbers, texts, and containers of them."""
    return _plain(value, iter(range(MAX_PLAIN)), MAX_PLAIN_DEPTH)


def _plain(value: Any, left: Iterator[int], depth: int) -> Any:
    """A pickle's lists may hold one another many times over, so what they come to is counted."""
    if next(left, None) is None or depth == 0:
        raise FormatError(
            f"stored arguments of more than {MAX_PLAIN:,} values, or nested deeper than"
            f" {MAX_PLAIN_DEPTH}",
            hint="leave them out with --optimizer drop",
        )
    if isinstance(value, Mapping):
        pairs = ((k, _plain(v, left, depth - 1)) for k, v in value.items() if type(k) in (str, int))
        return {k: v for k, v in pairs if v is not DROPPED}
    if type(value) in (list, tuple):
        items = [_plain(v, left, depth - 1) for v in value]
        return DROPPED if any(i is DROPPED for i in items) else type(value)(items)
    return value if type(value) in (type(None), bool, int, float, str) else DROPPED


_FORMS = {"I64": "<q", "I32": "<i", "F32": "<f", "F64": "<d"}


def number_in(value: Any) -> Any:
    """The number that a tensor of one element holds; any other value as it is."""
    form = _FORMS.get(value.dtype.name) if isinstance(value, Tensor) else None
    if form is None or prod(value.shape) != 1:
        return value
    start, size = value.storage_offset * value.dtype.itemsize, value.dtype.itemsize
    held = (value.storage.data or b"")[max(start, 0) : start + size]
    return unpack(form, held)[0] if len(held) == size else value

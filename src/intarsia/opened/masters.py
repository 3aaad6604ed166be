"""Weights beside the fp32 main weights that they are rounded from: two values of one fact, which must agree.

A weight is its main weight rounded to nearest even.  Where it is not, one of the two is stale, and
which one nobody but the user knows; or the run kept its weights in fewer bits, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import DType
from intarsia.errors import PrecisionError
from intarsia.family import table_for
from intarsia.frozen import frozen
from intarsia.layout import Layout, unravel
from intarsia.opened.fewer_bits import fewer_bits, may_have_fewer_bits
from intarsia.planning.manifest import Manifest
from intarsia.planning.window import windows
from intarsia.run.budget import Budget
from intarsia.run.sharing import share_out
from intarsia.state.names import master_of
from intarsia.value import PLAIN, Value, Window
from intarsia.value.bits import Bits, as_float64, bits_dtype
from intarsia.value.cast import cast


@frozen
class StaleElements:
    """A weight that is not its main weight rounded: how many elements, and the first of them."""

    name: str
    elements: int
    first: tuple[int, ...]
    weight: float
    master: float


def has_own_master(src: Manifest, name: str) -> bool:
    """Whether a main weight is stored beside a weight, rather than being the same elements."""
    if master_of(name) not in src.logical:
        return False
    places = [
        {(c.file, c.start_bytes) for s in src.sources.get(n, ()) for c in s.chunks}
        for n in (name, master_of(name))
    ]
    return places[0] != places[1]


def check_rounded(src: Manifest, layouts: Iterable[Layout], budget: Budget, *, hint: str) -> None:
    """Raise where weights are not their main weights rounded; both are read once, a window at a time.

    `layouts` are of weights, whole or what a rank holds of them.
    """
    todo = [*layouts]
    recentred = recentred_norms(src.config) if todo else {}
    with Checkpoint(src) as checkpoint:

        def look(layout: Layout) -> StaleElements | None:
            norm = recentred.get(layout.tensors[0], PLAIN) if layout.tensors else PLAIN
            return _stale(checkpoint, layout, budget.window_bytes, norm)

        found = [x for x in share_out(todo, budget.workers, look) if x is not None]
    if found and fewer_bits(src):
        found = [x for x in found if not may_have_fewer_bits(src.logical[x.name])]
    if found:
        raise _contradiction(found, src, hint)


def _contradiction(found: Sequence[StaleElements], src: Manifest, hint: str) -> PrecisionError:
    first = found[0]
    dtype = src.logical[first.name].dtype
    total = sum(x.elements for x in found)
    return PrecisionError(
        f"{total:,} elements of {len(found)} weights are not their fp32 main weights rounded to"
        f" {dtype}: one of the two is stale\n"
        f"  first: {first.name}{list(first.first)} is {first.weight!r},"
        f" {master_of(first.name)} there is {first.master!r}",
        at=src.path,
        hint=hint,
        kind="master-differs",
    )


def recentred_norms(config: Mapping[str, Any] | None) -> dict[str, Value]:
    """Norms that Megatron may centre on another value than the hub, and what it stores for them."""
    tables = (table_for(config, zero_centered=centered) for centered in (True, False))
    known = (table.dialects["megatron"] for table in tables if table is not None)
    changed = (row for rows in known for row in rows.values() if not row.value.is_plain)
    return {row.layout.tensors[0]: row.value for row in changed}


def _stale(
    checkpoint: Checkpoint, layout: Layout, window_bytes: int, recentred: Value
) -> StaleElements | None:
    """How weights differ from their main weights rounded; None where they do not.

    A norm may have been rounded where it was centred on another value: as `recentred` stores it.
    """
    found = _compared(checkpoint, layout, window_bytes, PLAIN)
    if found is None or recentred.is_plain:
        return found
    return _compared(checkpoint, layout, window_bytes, recentred) and found


def _compared(
    checkpoint: Checkpoint, layout: Layout, window_bytes: int, recentred: Value
) -> StaleElements | None:
    held = checkpoint.manifest.logical
    name = layout.tensors[0]
    a, b = held[name].dtype, held[master_of(name)].dtype
    # Both are read as the weight is centred on disk: there it was rounded.
    value = checkpoint.manifest.sources[name][0].value
    weights = checkpoint.prove(name, layout, a, value)
    masters = checkpoint.prove(master_of(name), layout.rename(master_of), b, value)
    count, first = 0, None
    for box in windows(layout.shape, 8, window_bytes):
        x = checkpoint.read_box(weights, box).view(bits_dtype(a))
        y = checkpoint.read_box(masters, box).view(bits_dtype(b))
        wrong = unlike(x, a, y, b, recentred)
        if not wrong.any():
            continue
        count += int(np.count_nonzero(wrong))
        if first is None:
            at = int(wrong.argmax())
            index = box.index_of(at)
            piece = layout.box(index, (1,) * len(index)).pieces[0]
            values = (as_float64(x[at : at + 1], a), as_float64(y[at : at + 1], b))
            place = unravel(piece.to, held[piece.tensor].shape)
            first = StaleElements(piece.tensor, 0, place, *(float(v[0]) for v in values))
    return None if first is None else replace(first, elements=count)


def unlike(x: Bits, a: DType, y: Bits, b: DType, recentred: Value) -> NDArray[np.bool_]:
    """Where elements are not the wider ones rounded; one NaN is as good as another."""
    rounded = cast(y, b, a)
    if not recentred.is_plain:
        stored = cast(recentred.encode(Window(y, b), b), b, a)
        rounded = recentred.decode(Window(stored, a), a)
    wrong = np.asarray(rounded != x)
    if wrong.any():
        both = np.isnan(as_float64(x[wrong], a)) & np.isnan(as_float64(y[wrong], b))
        wrong[wrong] = ~both & ~_halfway(x[wrong], a, y[wrong], b)
    return wrong


def _halfway(x: Bits, a: DType, y: Bits, b: DType) -> NDArray[np.bool_]:
    """Where what lies in the middle is rounded away from zero, as TransformerEngine does where it keeps main weights in halves."""
    if (a.name, b.name) != ("BF16", "F32"):
        return np.zeros(x.shape, bool)
    return np.asarray(((y & 0xFFFF) == 0x8000) & (x == (y >> 16) + 1))

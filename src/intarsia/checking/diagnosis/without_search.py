"""Pairs that are explained without a search: of unlike shapes, tied to another tensor, counters of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import UNEXPLAINED, Finding
from intarsia.checking.diagnosis.rearranged.keys import KEY_ELEMENTS, MOST_ROWS
from intarsia.checking.diagnosis.rearranged.order import along, of_runs
from intarsia.checking.diagnosis.where.blocks import may_pad
from intarsia.checking.pair.differing import same
from intarsia.checking.pair.pairs import Pair, read, read_windows
from intarsia.checkpoint import Checkpoint
from intarsia.errors import few
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.planning.manifest import Logical
from intarsia.planning.window import windows
from intarsia.run.budget import Budget
from intarsia.state.names import STEP, kind_of
from intarsia.value.bits import bits_dtype


def find_reshaped(a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget) -> Finding:
    """What makes a tensor of A one of another shape in B."""
    x, y = pair.a, pair.b
    whole = Layout.of(x.name, x.shape)
    shapes = f"shape {list(x.shape)} in A, {list(y.shape)} in B"
    most = max(x.size, y.size)

    def found(kind: str, fault: str) -> Finding:
        return Finding(x.name, kind, f"{shapes}; {fault}", fault, fault, most, most)

    if len(x.shape) > 1:
        turned = whole.transpose(-2, -1)
        if turned.shape == y.shape and _agrees(a, b, pair, turned, y.shape, budget):
            return found("transposed", "B is A transposed")
    if x.size == y.size and _agrees(a, b, pair, whole.reshape(*y.shape), y.shape, budget):
        return found("reshaped", "the same elements in the same order")
    if len(x.shape) == len(y.shape) and x.shape[1:] == y.shape[1:]:
        common = (min(x.shape[0], y.shape[0]), *x.shape[1:])
        if common[0] and _agrees(a, b, pair, whole, common, budget):
            longer, more = ("A", x.shape[0]) if x.shape[0] > y.shape[0] else ("B", y.shape[0])
            text = f"the first {common[0]:,} rows are equal, {longer} has {more - common[0]:,} more"
            pads = may_pad(x.name, more - common[0], more)
            return found("padding" if pads else "rows-missing", text)
        if (inserted := _inserted(a, b, pair, budget)) is not None:
            return found(*inserted)
    return Finding(x.name, UNEXPLAINED, shapes, shapes, shapes, 0, most)


def _agrees(
    a: Checkpoint, b: Checkpoint, pair: Pair, layout: Layout, shape: Sequence[int], budget: Budget
) -> bool:
    """Whether A in a layout equals B, as far as `shape` reaches."""
    x, y = pair.a.dtype, pair.b.dtype
    proven = a.prove(pair.a.name, layout, x)
    for box in windows(tuple(shape), max(x.itemsize, y.itemsize), budget.window_bytes // 2):
        left = a.read_box(proven, box).view(bits_dtype(x))
        right = read(b, pair.b, box).view(bits_dtype(y))
        if not same(left, right, x, y).all():
            return False
    return True


def _inserted(a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget) -> tuple[str, str] | None:
    """The kind and the text where one side has all rows of the other in their order, and more."""
    sides = ("A", a, pair.a), ("B", b, pair.b)
    (shorter, less, x), (longer, more, y) = sorted(sides, key=lambda side: side[2].shape[0])
    if x.dtype != y.dtype or not x.size or not 0 < y.shape[0] <= MOST_ROWS:
        return None
    keys = [[*_first_elements(side, tensor)] for side, tensor in ((less, x), (more, y))]
    places, at = list[int](), 0
    for key in keys[0]:
        while at < len(keys[1]) and keys[1][at] != key:
            at += 1
        places.append(at)
        at += 1
    if at > len(keys[1]):
        return None
    order = of_runs(np.array(places))
    layout = along(Layout.of(y.name, y.shape), 0, order)
    if not _agrees(more, less, Pair(y, x), layout, x.shape, budget):
        return None
    first, last = places[0], places[-1]
    if last - first == len(places) - 1:
        return "rows-missing", f"{shorter} is rows [{first:,}:{last + 1:,}) of {longer}"
    between = np.setdiff1d(np.arange(y.shape[0]), places)
    cuts = np.split(between, np.flatnonzero(np.diff(between) > 1) + 1)
    listed = few([f"[{cut[0]:,}:{cut[-1] + 1:,})" for cut in cuts], 8)
    more_rows = f"{longer} has {len(between):,} rows more, {listed}"
    return "shifted", f"{more_rows}; the others are those of {shorter} in their order"


def _first_elements(side: Checkpoint, x: Logical) -> Iterator[bytes]:
    """What each row begins with."""
    front = Layout.of(x.name, (x.shape[0], x.size // x.shape[0]))
    width = min(KEY_ELEMENTS, front.shape[1])
    part = front.narrow(1, 0, width)
    raw = side.read_box(side.prove(x.name, part, x.dtype), Box.whole(part.shape)).tobytes()
    step = width * x.dtype.itemsize
    return (raw[k : k + step] for k in range(0, len(raw), step))


def find_untied(a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget) -> Finding | None:
    """What is wrong where a side stores both tensors, and they differ; None where they are equal."""
    if not pair.tied:
        return None
    side, held, own, twin = b, "B", pair.b, pair.a
    if pair.b.name in a.manifest.logical:
        side, held, own, twin = a, "A", pair.a, pair.b
    both = Pair(own, side.manifest.logical[twin.name])
    if both.a.shape == both.b.shape and both.a.dtype == both.b.dtype:
        windows = read_windows(side, side, both, budget)
        if all(np.array_equal(x, y) for _, x, y in windows):
            return None
    other = "A" if held == "B" else "B"
    text = f"{held} stores `{own.name}` unlike `{twin.name}`, to which {other} ties it"
    return Finding(pair.name, "tied-differ", text, text, own.name, own.size, own.size)


def find_steps(e: Evidence) -> Finding | None:
    """The steps of both sides, where the pair is a counter."""
    if kind_of(e.name) != STEP or e.pair.a.size != 1:
        return None
    w = e.window(Box.whole(e.shape))
    text = f"step {w.u[0]:.12g} in A, {w.v[0]:.12g} in B"
    return Finding(e.name, "steps-differ", text, text, text, 1, 1)

"""Counters of steps that differ: a number that is another, and no numbers that were lost or made anew."""

from __future__ import annotations

from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.pair.pairs import Pair, read
from intarsia.checkpoint import Checkpoint
from intarsia.mesh import Box
from intarsia.state.names import STEP, kind_of
from intarsia.value.bits import as_float64, bits_dtype


def find_steps(a: Checkpoint, b: Checkpoint, pair: Pair) -> Finding | None:
    """The steps of both sides, where the pair is a counter."""
    if kind_of(pair.a.name) != STEP or pair.a.size != 1:
        return None
    counts = [
        float(as_float64(read(side, x, Box.whole(x.shape)).view(bits_dtype(x.dtype)), x.dtype)[0])
        for side, x in ((a, pair.a), (b, pair.b))
    ]
    text = f"step {counts[0]:.12g} in A, {counts[1]:.12g} in B"
    return Finding(pair.a.name, "steps-differ", text, text, text, 1, 1)

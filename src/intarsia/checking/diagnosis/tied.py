"""A tensor that the configuration ties to another, stored on one side and different from that one there."""

from __future__ import annotations

import numpy as np

from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.pair.pairs import Pair, read_windows
from intarsia.checkpoint import Checkpoint
from intarsia.run.budget import Budget


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
    return Finding(pair.a.name, "tied-differ", text, text, own.name, own.size, own.size)

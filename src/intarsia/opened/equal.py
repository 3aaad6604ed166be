"""Whether two tensors of one checkpoint are equal."""

from __future__ import annotations

import numpy as np

from intarsia.checkpoint import Checkpoint
from intarsia.planning.window import windows


def equal(checkpoint: Checkpoint, a: str, b: str, window_bytes: int) -> bool:
    """Whether two tensors of one checkpoint have the same type, shape and bits."""
    left, right = (checkpoint.manifest.logical[name] for name in (a, b))
    if (left.shape, left.dtype) != (right.shape, right.dtype):
        return False
    x, y = (checkpoint.prover.tensor(name) for name in (a, b))
    return all(
        np.array_equal(checkpoint.read_box(x, box), checkpoint.read_box(y, box))
        for box in windows(left.shape, left.dtype.itemsize, max(1, window_bytes // 2))
    )

"""Evidence that is turned round keeps what its two sides are called, so that no sentence has to be."""

from __future__ import annotations

from typing import cast

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypotheses.values import value_hypotheses
from intarsia.checking.pair.pairs import Pair
from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import BY_NAME
from intarsia.planning.manifest import Logical
from intarsia.run.budget import Budget


def evidence() -> Evidence:
    """A tensor of 16 numbers in A, which are zero in B."""
    sides = [np.arange(1, 17, dtype=np.float32), np.zeros(16, np.float32)]
    a, b = (cast(Checkpoint, _Numbers(x)) for x in sides)
    x = Logical("x.A.weight", (16,), BY_NAME["F32"])
    return Evidence(a, b, Pair(x, x), (0,), Budget(1 << 20, 1))


class _Numbers:
    """As much of a checkpoint as a sample needs: one tensor, in memory."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.bytes = numbers.view(np.uint8)

    def prove(self, *_: object) -> None: ...

    @property
    def prover(self) -> _Numbers:
        return self

    def tensor(self, _: str) -> None: ...

    def read_box(self, *_: object) -> np.ndarray:
        return self.bytes


def test_a_turned_pair_keeps_its_names() -> None:
    e = evidence()
    assert (e.left, e.right) == ("A", "B")
    assert (e.flipped.left, e.flipped.right) == ("B", "A")
    assert e.flipped.a is e.b
    assert e.flipped.flipped == e


def test_the_side_that_is_zero_is_called_the_same_from_either_side() -> None:
    for e in (evidence(), evidence().flipped):
        holding = [h for h in value_hypotheses(e) if h.kind == "zero" and e.on_sample(h).exact]
        assert [(h.text, h.side) for h in holding] == [("B is all zeros", "B")]

"""Each verb against the same words in NumPy."""

from __future__ import annotations

import numpy as np

from intarsia.family import verbs
from intarsia.layout import Layout
from tests.family.arrays import carried, element_ids

SHAPES = {"q": (24, 5), "k": (6, 5), "v": (6, 5), "gate": (4, 3), "up": (4, 3), "qg": (48, 5)}
ARRAYS = element_ids(SHAPES)
Q, K, V, GATE, UP, QG = (ARRAYS[name] for name in SHAPES)


def made(verb: verbs.Verb, *names: str) -> np.ndarray:
    return carried(verb(*[Layout.of(name, SHAPES[name]) for name in names]), ARRAYS)


def test_gated() -> None:
    np.testing.assert_array_equal(made(verbs.gated, "gate", "up"), np.vstack([GATE, UP]))


def test_interleaved() -> None:
    both = made(verbs.interleaved, "gate", "up")
    np.testing.assert_array_equal(both[::2], GATE)
    np.testing.assert_array_equal(both[1::2], UP)


def test_transposed() -> None:
    np.testing.assert_array_equal(made(verbs.transposed, "gate"), GATE.T)


def test_joined() -> None:
    np.testing.assert_array_equal(made(verbs.joined, "q", "k", "v"), np.vstack([Q, K, V]))


def test_by_group() -> None:
    wanted = [np.vstack([Q[8 * g : 8 * g + 8], K[2 * g : 2 * g + 2], V[2 * g : 2 * g + 2]])
              for g in range(3)]  # fmt: skip
    np.testing.assert_array_equal(made(verbs.by_group(3), "q", "k", "v"), np.vstack(wanted))


def test_by_group_with_gate() -> None:
    wanted = []
    for g in range(3):
        heads = [QG[4 * h : 4 * h + 4] for h in range(4 * g, 4 * g + 4)]
        wanted += [h[:2] for h in heads] + [h[2:] for h in heads]
        wanted += [K[2 * g : 2 * g + 2], V[2 * g : 2 * g + 2]]
    verb = verbs.by_group_with_gate(3, 2)
    np.testing.assert_array_equal(made(verb, "qg", "k", "v"), np.vstack(wanted))


def test_of_every_group() -> None:
    wanted = np.vstack([Q[8 * g + 1 : 8 * g + 4] for g in range(3)])
    np.testing.assert_array_equal(made(verbs.of_every_group(3, 1, 4), "q"), wanted)


def test_rows() -> None:
    np.testing.assert_array_equal(made(verbs.rows(2, 5), "q"), Q[2:5])


def test_stacked_and_then() -> None:
    np.testing.assert_array_equal(made(verbs.stacked(), "gate", "up"), np.stack([GATE, UP]))
    verb = verbs.stacked(verbs.then(verbs.gated, verbs.transposed), per=2)
    wanted = np.stack([np.vstack([GATE, UP]).T, np.vstack([UP, GATE]).T])
    np.testing.assert_array_equal(made(verb, "gate", "up", "up", "gate"), wanted)

"""The proof against brute force: sets of elements, counted one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import LayoutError
from intarsia.layout import (
    Layout,
    Piece,
    chunk,
    concat,
    cover,
    once,
    padding,
    stack,
    tally,
    unravel,
)
from tests.oracle.layouts import TENSORS, Twin, expressions, joint, pairs, pieces, runs_of

W = Layout.of("w", (6, 4))


def elements(a: np.ndarray) -> list[int]:
    return [e for e in a.reshape(-1).tolist() if e >= 0]


def named(element: int) -> tuple[str, int]:
    tensor = max((t for t in TENSORS if TENSORS[t] <= element), key=TENSORS.__getitem__)
    return tensor, element - TENSORS[tensor]


@settings(max_examples=500)
@given(st.lists(pieces(), max_size=5))
def test_tally_counts_indices_once_and_more_than_once(some: list[Piece]) -> None:
    depth = Counter(at for p in some for at, _ in pairs(p))
    assert tally(some) == (len(depth), sum(n > 1 for n in depth.values()))


@settings(max_examples=500)
@given(expressions(depth=4), st.lists(expressions(depth=4), max_size=3))
def test_cover_counts_what_brute_force_counts(dst: Twin, sources: list[Twin]) -> None:
    writes = Counter(to for _, a in sources for _, to in joint(a, dst[1]).elements())
    held = Counter(e for _, a in sources for e in elements(a))
    wanted = set(elements(dst[1]))
    found = cover(dst[0], [x for x, _ in sources])
    assert found.wanted == dst[0].mapped
    assert found.covered == len(writes)
    assert found.doubled == sum(n > 1 for n in writes.values())
    assert found.exact == (len(writes) == dst[0].mapped and max(writes.values(), default=1) == 1)

    absent = wanted - set(held)
    ranges = {t: runs_of(named(e)[1] for e in absent if named(e)[0] == t) for t in dst[0].tensors}
    assert list(found.missing) == [(t, lo, hi) for t in ranges for lo, hi in ranges[t]][:8]
    assert found.first_missing == (found.missing[0][:2] if absent else None)

    twice = {named(e) for e in wanted if held[e] > 1}
    first = [min(x for x in twice if x[0] == t) for t in dst[0].tensors if t in dict(twice)]
    assert found.first_doubled == (first[0] if first else None)


@given(st.lists(expressions(depth=4), max_size=3), st.integers(0, 60))
def test_what_is_held_of_a_range_is_counted_once(twins: list[Twin], size: int) -> None:
    held = {named(e)[1] for _, a in twins for e in elements(a) if named(e)[0] == "w"}
    pieces = [p.flip() for x, _ in twins for p in x.pieces if p.tensor == "w"]
    assert once(pieces, 0, size) == len(held & {*range(size)})


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("axis", [0, 1])
def test_shards_cover_a_tensor_exactly_and_any_shard_less_does_not(n: int, axis: int) -> None:
    shards = chunk(W, n, axis)
    assert cover(W, shards).exact
    for i, shard in enumerate(shards):
        rest = cover(W, shards[:i] + shards[i + 1 :])
        assert rest.exact == (shard.mapped == 0)
        assert rest.covered == W.mapped - shard.mapped


def test_a_sum_that_fits_is_no_proof() -> None:
    top = W.narrow(0, 0, 3)
    found = cover(W, [top, top])
    assert (found.wanted, found.covered, found.doubled) == (24, 12, 12)
    assert not found.exact
    assert found.first_missing == ("w", 12)
    assert found.first_doubled == ("w", 0)


def test_a_replicated_source_doubles_every_element() -> None:
    twice = W.reshape(1, 24).expand(0, 2)
    assert cover(W, [twice]).doubled == 24
    assert cover(twice, [W]).exact


def test_padding_wants_nothing() -> None:
    assert cover(padding(3, 3), []).exact
    assert cover(concat([W, padding(2, 4)]), [W]).exact


def test_missing_names_few_ranges_of_many() -> None:
    big = Layout.of("w", (100_000, 64))
    found = cover(big, [big.narrow(1, 0, 63)])
    assert found.covered == 6_300_000
    assert found.missing == tuple(("w", 64 * r + 63, 64 * r + 64) for r in range(8))


def test_many_interleaved_columns_are_one_sweep() -> None:
    big = Layout.of("w", (1 << 16, 1 << 10))
    columns = chunk(big, 1 << 10, 1)
    assert cover(big, columns).exact
    assert cover(big, [*columns, columns[7]]).first_doubled == ("w", 7)


def test_an_expert_that_every_rank_believes_is_its_own_is_missed() -> None:
    experts = [Layout.of(f"experts.{i}", (4, 2)) for i in range(8)]
    whole = stack(experts)
    right = [stack(experts[2 * r : 2 * r + 2]) for r in range(4)]
    wrong = [stack(experts[:2]) for _ in range(4)]
    assert cover(whole, right).exact
    found = cover(whole, wrong)
    assert (found.covered, found.doubled) == (16, 16)
    assert found.missing[0] == ("experts.2", 0, 8)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), st.data())
def test_unravel_is_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, int(np.prod(shape)) - 1))
    assert unravel(index, shape) == tuple(int(i) for i in np.unravel_index(index, shape))


def test_an_index_outside_of_its_shape_is_refused() -> None:
    assert unravel(0, ()) == ()
    with pytest.raises(LayoutError, match=r"element 6 of \(2, 3\), which has 6"):
        unravel(6, (2, 3))

"""Runs that are summed together have the sums that each has alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.run.sums.checksum import remainder
from intarsia.run.sums.hashing import sum_run
from intarsia.run.sums.neighbours import Neighbours, Run
from intarsia.run.sums.pages import FIRST_PAGES, PAGE_BYTES

starts = st.integers(0, 3 * PAGE_BYTES) | st.integers(0, 30).map(
    lambda more: PAGE_BYTES * FIRST_PAGES - more
)
runs = st.builds(
    lambda start, length, after: Run(start, length, start + length + after),
    starts,
    st.integers(1, 20) | st.integers(1, 3 * PAGE_BYTES),
    st.integers(0, 9) | st.just(1 << 33),
)


def _alike(start: int, pages: int, after: int, count: int) -> list[Run]:
    length = PAGE_BYTES * pages
    return [Run(start, length, start + length + after)] * count


alike = st.builds(
    _alike,
    st.integers(0, 3).map(PAGE_BYTES.__mul__)
    | st.integers(FIRST_PAGES - 3, FIRST_PAGES + 1).map(PAGE_BYTES.__mul__)
    | starts,
    st.integers(1, 3),
    st.integers(0, 9) | st.just(1 << 33),
    st.integers(1, 4),
)
"""The same run of as many bytes as pages have, of several tensors."""

mixed = st.tuples(alike, st.lists(runs, max_size=2)).flatmap(lambda x: st.permutations(x[0] + x[1]))


@settings(max_examples=200, deadline=None)
@given(st.lists(runs, min_size=1, max_size=9) | alike | mixed, st.integers(0, 1000))
def test_runs_that_begin_and_end_anywhere_are_summed_as_each_alone(
    some: list[Run], seed: int
) -> None:
    together, random = Neighbours(some), np.random.default_rng(seed)
    memory = random.integers(0, 256, together.nbytes, np.uint8)
    data = [random.integers(0, 256, run.length_bytes, np.uint8) for run in some]
    views = together.views(memory)
    for view, held in zip(views, data, strict=True):
        view[:] = held
    alone = [sum_run(x, r.start_bytes, r.whole_bytes) for x, r in zip(data, some, strict=True)]
    assert together.sums(memory, [remainder(x) for x in data]) == alone
    for k, held in enumerate(data):
        assert np.array_equal(together.rows(memory, k, 1), [held])
    if len(set(some)) == 1:
        assert np.array_equal(together.rows(memory, 0, len(some)), data)

"""Ranges that share some of another are among those that a search gives, and no range outside is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from intarsia.planning.ranges import Ranges

pairs = st.tuples(st.integers(0, 40), st.integers(1, 40)).map(lambda x: (x[0], x[0] + x[1]))


@given(st.lists(pairs, max_size=12), pairs)
def test_no_range_that_shares_some_is_left_out(
    ranges: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    ranges.sort()
    near = Ranges([lo for lo, _ in ranges], [hi for _, hi in ranges]).near(*asked)
    shared = [lo < asked[1] and asked[0] < hi for lo, hi in ranges]
    assert not any(shared[: near.start])
    assert not any(shared[near.stop :])
    assert all(lo < asked[1] for lo, _ in ranges[near])
    assert shared[near][:1] in ([], [True])

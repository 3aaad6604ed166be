"""A run has the sum in its tensor that its bytes have alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.run.sums.checksum import remainder
from intarsia.run.sums.hashing import sum_run
from intarsia.run.sums.pages import FIRST_PAGES, PAGE_BYTES
from intarsia.run.sums.runs import Run

starts = st.integers(0, 3 * PAGE_BYTES) | st.integers(0, 30).map(
    lambda more: PAGE_BYTES * FIRST_PAGES - more
)


@settings(max_examples=100, deadline=None)
@given(
    starts,
    st.integers(1, 20) | st.integers(1, 3 * PAGE_BYTES),
    st.integers(0, 9) | st.just(1 << 33),
    st.integers(0, 1000),
)
def test_a_run_in_a_longer_tensor_has_the_checksum_that_is_shifted_by_what_follows(
    start: int, length: int, after: int, seed: int
) -> None:
    data = np.random.default_rng(seed).integers(0, 256, length, np.uint8)
    run = Run(start, length, start + length + after)
    alone = sum_run(data, start, run.whole_bytes)
    assert run.sum(alone.pages, remainder(data)) == alone

"""A matrix's sums tell zeros and repeats, however it is cut into blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.checking.naming import ModelPlace, StackedMatrix
from intarsia.checking.survey.block_survey import runs_of_rows
from intarsia.checking.survey.matrix_facts import MatrixFacts, Repeat, repeat_in, runs
from intarsia.checking.survey.matrix_sums import MatrixSums
from intarsia.dtypes import BY_NAME

BF16 = BY_NAME["BF16"]


def add(sums: MatrixSums, bits: np.ndarray, rows: np.ndarray, column: int) -> None:
    """Add a block whose rows have these numbers."""
    for lo, hi in runs_of_rows(rows, sums.units[0]):
        part = bits[lo:hi]
        along = (part.sum(axis=axis, dtype=np.uint64) for axis in (1, 0))
        sums.add(int(rows[lo]), *along, column)
        if sums.coarse:
            sums.add_ends(int(rows[lo]), part)


def drawn(bits: np.ndarray, cuts: list[tuple[int, int, int, int]] | None = None) -> MatrixFacts:
    """What is known of a matrix that comes in blocks `(first row, end, first column, end)`."""
    rows, columns = bits.shape
    sums = MatrixSums([StackedMatrix(ModelPlace("w"), 0, rows, columns)], BF16)
    for a, b, c, d in cuts or [(0, rows, 0, columns)]:
        add(sums, bits[a:b, c:d], np.arange(a, b), c)
    return sums.facts()[0]


def matrix(rows: int = 12, columns: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 1 << 16, (rows, columns)).astype(np.uint16)


@given(st.integers(0, 12), st.integers(0, 8), st.integers(0, 5))
def test_any_cut_gives_the_same_portrait(row: int, column: int, seed: int) -> None:
    bits = matrix(seed=seed)
    cuts = [(0, row, 0, 8), (row, 12, 0, column), (row, 12, column, 8)]
    assert drawn(bits, [c for c in cuts if c[0] < c[1] and c[2] < c[3]]) == drawn(bits)


def test_other_numbers_give_another_digest() -> None:
    changed = matrix()
    changed[5, 3] ^= 1
    assert drawn(changed).digest != drawn(matrix()).digest


def test_blocks_that_span_two_matrices_are_parted() -> None:
    bits = matrix()
    units = [StackedMatrix(ModelPlace("w", expert=e), 6 * e, 6, 8) for e in (0, 1)]
    sums = MatrixSums(units, BF16)
    add(sums, bits[:9], np.arange(9), 0)
    add(sums, bits[9:], np.arange(9, 12), 0)
    apart = [drawn(bits[:6]).digest, drawn(bits[6:]).digest]
    assert [p.digest for p in sums.facts()] == apart


def test_zero_rows_and_columns_are_found() -> None:
    bits = matrix()
    bits[4:9] = 0
    bits[:, 6:] = 0
    found = drawn(bits)
    assert found.zero_rows == ((4, 9),)
    assert found.zero_columns == ((6, 8),)
    assert not found.zero


def test_padding_is_no_zero_row() -> None:
    bits = matrix()
    bits[9:] = 0
    sums = MatrixSums([StackedMatrix(ModelPlace("w"), 0, 12, 8)], BF16)
    add(sums, bits, np.arange(12), 0)
    assert sums.facts(np.arange(12) >= 9)[0].zero_rows == ()


def test_a_constant_matrix_tells_nothing() -> None:
    ones = drawn(np.ones((12, 8), np.uint16))
    assert (ones.constant, ones.zero, ones.telling) == (True, False, False)
    assert drawn(np.zeros((12, 8), np.uint16)).zero


def test_equal_blocks_are_found_on_either_axis() -> None:
    bits = matrix()
    bits[6:] = bits[:6]
    assert drawn(bits).repeated_rows == Repeat(2, 0, 1, every=True)
    turned = matrix(8, 12)
    turned[:, 6:] = turned[:, :6]
    assert drawn(turned).repeated_columns == Repeat(2, 0, 1, every=True)
    assert drawn(matrix()).repeated_rows is None


def test_one_of_four_blocks_that_repeats_another_is_found() -> None:
    sums = np.arange(16, dtype=np.uint64)
    sums[12:] = sums[4:8]
    assert repeat_in(sums) == Repeat(4, 1, 3, every=False)


def test_rows_that_are_all_alike_are_no_repeat() -> None:
    assert repeat_in(np.full(64, 7, np.uint64)) is None


def test_the_longest_run_comes_first() -> None:
    assert runs(np.array([1, 0, 1, 1, 0, 1, 1, 1], bool)) == ((5, 8), (2, 4), (0, 1))


LONG = 960


def coarse(bits: np.ndarray, cuts: list[tuple[int, int, int, int]] | None = None) -> MatrixFacts:
    """What is known of a matrix by few sums."""
    rows, columns = bits.shape
    sums = MatrixSums([StackedMatrix(ModelPlace("w"), 0, rows, columns)], BF16, most=200)
    assert sums.rows.size + sums.columns.size <= 200
    for a, b, c, d in cuts or [(0, rows, 0, columns)]:
        add(sums, bits[a:b, c:d], np.arange(a, b), c)
    return sums.facts()[0]


@given(st.integers(0, LONG), st.integers(0, 8), st.booleans(), st.integers(0, 5))
def test_few_sums_are_the_same_for_any_cut(row: int, column: int, turn: bool, seed: int) -> None:
    bits = matrix(LONG, seed=seed)
    cuts = [(0, row, 0, 8), (row, LONG, 0, column), (row, LONG, column, 8)]
    if turn:
        bits = bits.T
        cuts = [(c, d, a, b) for a, b, c, d in cuts]
    assert coarse(bits, [c for c in cuts if c[0] < c[1] and c[2] < c[3]]) == coarse(bits)


@given(st.integers(0, LONG - 120), st.integers(60, 120), st.booleans())
def test_few_sums_find_most_of_a_zero_block(lo: int, n: int, turn: bool) -> None:
    bits = matrix(LONG)
    bits[lo : lo + n] = 0
    found = coarse(bits.T).zero_columns if turn else coarse(bits).zero_rows
    ((first, end),) = found
    assert lo <= first < lo + 20
    assert lo + n - 20 < end <= lo + n


def test_few_sums_find_equal_blocks() -> None:
    bits = matrix(LONG)
    bits[LONG // 2 :] = bits[: LONG // 2]
    assert coarse(bits).repeated_rows == Repeat(2, 0, 1, every=True)
    assert coarse(bits.T).repeated_columns == Repeat(2, 0, 1, every=True)


def test_few_sums_tell_rows_in_another_order_apart() -> None:
    bits = matrix(LONG)
    assert coarse(bits[np.arange(LONG) ^ 1]).digest != coarse(bits).digest


@pytest.mark.parametrize("length", [LONG, 953])
def test_few_sums_know_constants_and_zeros(length: int) -> None:
    for shape in ((length, 8), (8, length), (1, length)):
        ones = coarse(np.ones(shape, np.uint16))
        assert (ones.constant, ones.zero) == (True, False)
        assert coarse(np.zeros(shape, np.uint16)).zero
        assert not coarse(matrix(*shape)).constant


def test_few_sums_part_the_matrices_of_a_stack() -> None:
    bits = matrix(LONG)
    units = [StackedMatrix(ModelPlace("w", expert=e), e * LONG // 2, LONG // 2, 8) for e in (0, 1)]
    bits[LONG // 2 :] = bits[: LONG // 2]
    sums = MatrixSums(units, BF16, most=200)
    add(sums, bits[:700], np.arange(700), 0)
    add(sums, bits[700:], np.arange(700, LONG), 0)
    a, b = sums.facts()
    assert a.digest == b.digest

"""The compiled survey shows what NumPy shows, whatever the elements, their type, their shape and their place."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from intarsia.checking.survey.block_survey import survey_in_numpy
from intarsia.checking.survey.matrix_facts import CUTS, FEWEST_ROWS, hash_of_sums
from intarsia.kernel.library import has_kernel
from intarsia.kernel.room import ROOM_BYTES
from intarsia.kernel.surveying import (
    CRC,
    FACTS,
    PAGES,
    REPEATS,
    Asked,
    Matrix,
    Surveyed,
    survey_file,
    survey_memory,
)
from intarsia.run.sums.checksum import remainder
from intarsia.run.sums.hashing import sum_run

pytestmark = pytest.mark.skipif(not has_kernel(), reason="the kernel is not built: no C compiler")

SHAPES = [
    (1, 1),
    (1, 2),
    (2, 1),
    (3, 5),
    (4, 7),
    (5, 8),
    (9, 33),
    (12, 24),
    (64, 48),
    (1, 2047),
    (2, 2049),
    (7, 4100),
    (1, 300_001),
    (70_000, 1),
    (70_003, 3),
    (3, 200_000),
    (0, 4),
    (4, 0),
]
ITEMSIZES = (1, 2, 4, 8)


def drawn(shape: tuple[int, int], itemsize: int, how: int) -> np.ndarray:
    """Elements of any bits, of small ones, of the greatest, of zeros with and without a sign, or alike."""
    chance = np.random.default_rng(how)
    sign = 1 << (8 * itemsize - 1)
    bits = chance.integers(0, 256, (*shape, itemsize), np.uint8).view(f"<u{itemsize}")[..., 0]
    if how == 1:
        bits = bits % 3
    elif how == 2:
        bits = np.full_like(bits, 2 * sign - 1)
    elif how == 3:
        bits = np.where(bits % 2, bits.dtype.type(sign), bits.dtype.type(0))
    elif how == 4:
        bits = np.where(bits % 5 == 0, bits.dtype.type(sign), bits)
    elif how == 5:
        bits = np.full_like(bits, 7)
    return np.ascontiguousarray(bits)


def check(bits: np.ndarray, sign: int, at: Matrix, found: Surveyed, k: int) -> None:
    seen, sums = found.seen[k], found.sums[at.sums_at : at.sums_at + sum(bits.shape)]
    even = np.where(bits == sign, bits.dtype.type(0), bits) if sign else bits
    rows, columns = even.sum(axis=1, dtype=np.uint64), even.sum(axis=0, dtype=np.uint64)
    assert sums.tolist() == [*rows.tolist(), *columns.tolist()]
    assert seen.total == int(rows.sum(dtype=np.uint64))
    if bits.size:
        magnitude = bits % sign if sign else bits
        assert (seen.most, seen.least) == (magnitude.max(), magnitude.min())
        assert seen.used == int(np.bitwise_or.reduce(even.reshape(-1)))
        assert bool(seen.signed_zero) == bool((bits == sign).any())
    if at.wanted & FACTS:
        assert (seen.hash_low, seen.hash_high) == tuple(hash_of_sums(sums, 0).tolist())
    data = bits.reshape(-1).view(np.uint8)
    whole = sum_run(data, at.start, at.start + len(data))
    assert seen.crc == (remainder(data) if at.wanted & (CRC | PAGES) else 0)
    assert seen.pages == (whole.pages if at.wanted & PAGES else 0)


def check_numpy(asked: Asked, found: Surveyed) -> None:
    """NumPy shows the same, but that all sums count as odd."""
    other = survey_in_numpy(asked)
    for at, one, two in zip(asked.matrices, found.seen, other.seen, strict=True):
        end = at.sums_at + at.rows + at.columns
        assert (found.sums[at.sums_at : end] == other.sums[at.sums_at : end]).all()
        assert one._replace(odd=1, hash_low=0, hash_high=0) == two


@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.one_in(2)
def test_memory_is_surveyed_as_numpy_does(itemsize: int) -> None:
    for shape in SHAPES:
        for how in range(6) if shape[0] * shape[1] < 20_000 else (0, 2, 4):
            for sign in (0, 1 << (8 * itemsize - 1)):
                bits = drawn(shape, itemsize, how)
                # An address that no element has by itself.
                memory = np.empty(bits.nbytes + 1, np.uint8)
                memory[1:] = bits.reshape(-1).view(np.uint8)
                at = Matrix(memory.ctypes.data + 1, *shape, itemsize, sign, 2, FACTS | PAGES, 24)
                asked = Asked([at], sum(shape) + 2, CUTS, FEWEST_ROWS)
                found = survey_memory(asked)
                check(bits, sign, at, found, 0)
                if bits.size:
                    check_numpy(asked, found)


@pytest.mark.parametrize("itemsize", ITEMSIZES)
def test_one_element_is_seen_in_whatever_row_it_lies(itemsize: int) -> None:
    sign = 1 << (8 * itemsize - 1)
    for row in range(9):
        for element in (sign, 1, sign + 1, 2 * sign - 1, 0):
            bits = np.full((9, 35), 3, f"<u{itemsize}")
            bits[row, 7 * row % 35] = element
            at = Matrix(bits.ctypes.data, 9, 35, itemsize, sign, 0)
            check(bits, sign, at, survey_memory(Asked([at], 44)), 0)


def test_matrices_of_a_file_are_surveyed_near_each_other_and_apart(tmp_path: Path) -> None:
    chance = random.Random(3)
    data, held, sums_at = bytearray(), [], 0
    for number in range(120):
        itemsize, shape = chance.choice(ITEMSIZES), chance.choice(SHAPES[:11] * 3 + SHAPES)
        bits = drawn(shape, itemsize, number % 6)
        data += bytes(chance.choice([0, 0, 1, 8, 4000, 5000]))
        sign = chance.choice([0, 1 << (8 * itemsize - 1)])
        wanted, start = chance.choice([0, CRC, PAGES, FACTS | REPEATS]), chance.choice([0, 8, 4104])
        held.append((bits, sign, Matrix(len(data), *shape, itemsize, sign, sums_at, wanted, start)))
        data += bits.tobytes()
        sums_at += sum(shape)
    assert len(data) > 4 * ROOM_BYTES
    (tmp_path / "file").write_bytes(data)
    for order in (held, held[::-1]):
        with open(tmp_path / "file", "rb") as file:
            found = survey_file(file.fileno(), Asked([at for *_, at in order], sums_at, CUTS, 3))
        for k, (bits, sign, at) in enumerate(order):
            check(bits, sign, at, found, k)


@pytest.mark.parametrize(
    ("rows", "columns", "odd"),
    [
        ([5, 6, 7, 8, 9, 10], [25, 2, 3, 4, 5, 6], False),
        ([5, 6, 7, 8, 9, 9], [24, 2, 3, 4, 5, 6], True),
        ([5, 6, 0, 8, 9, 10], [18, 2, 3, 4, 5, 6], True),
        ([5, 6, 7, 8, 9, 10], [29, 2, 3, 0, 5, 6], True),
        ([5, 6, 7, 5, 9, 10], [22, 2, 3, 4, 5, 6], True),
        ([5, 6, 7, 8, 9, 10], [14, 2, 3, 14, 5, 7], True),
        ([5, 6, 6, 8, 9, 10], [25, 2, 2, 4, 5, 6], False),
        ([6], [1, 2, 3], False),
        ([6], [2, 2, 2], True),
        ([1, 5], [2, 2, 2], False),
    ],
)
def test_sums_that_may_show_a_fault_are_odd(rows: list[int], columns: list[int], odd: bool) -> None:
    bits = np.zeros((len(rows), len(columns)), np.uint64)
    bits[:, 0], bits[0, 1:] = rows, columns[1:]
    bits[0, :1] -= bits[0, 1:].sum()
    at = Matrix(bits.ctypes.data, *bits.shape, 8, 0, 0, FACTS | REPEATS)
    found = survey_memory(Asked([at], sum(bits.shape), CUTS, FEWEST_ROWS))
    assert found.sums.tolist() == [*rows, *columns]
    assert bool(found.seen[0].odd) == odd


def test_a_file_that_ends_early_and_one_that_cannot_be_read_raise_what_python_raises(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"12345678")
    with open(tmp_path / "file", "rb") as file, pytest.raises(EOFError):
        survey_file(file.fileno(), Asked([Matrix(4, 1, 5, 1, 0, 0)], 6))
    with open(tmp_path / "file", "wb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        survey_file(file.fileno(), Asked([Matrix(0, 1, 5, 1, 0, 0)], 6))

"""The compiled sums are those of the Python beside them, whatever the bytes, their number and their place."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from intarsia.kernel.library import has_kernel
from intarsia.kernel.room import ROOM_BYTES
from intarsia.kernel.summing import FileRuns, sum_file, sum_memory
from intarsia.run.sums.hashing import sum_run

pytestmark = pytest.mark.skipif(not has_kernel(), reason="the kernel is not built: no C compiler")

LENGTHS = [
    *range(20),
    63,
    64,
    65,
    255,
    256,
    257,
    511,
    4095,
    4096,
    4097,
    8191,
    8192,
    8193,
    16448,
    32768,
    40001,
    ROOM_BYTES + 9,
]
STARTS = [0, 1, 7, 8, 4095, 4096, 4100, 999_999]


def held(count_bytes: int) -> np.ndarray:
    return np.frombuffer(random.Random(count_bytes).randbytes(count_bytes), np.uint8)


def expected(data: np.ndarray, start: int) -> tuple[int, int]:
    found = sum_run(data, start, start + len(data))
    return found.pages, found.crc


@pytest.mark.parametrize("start", STARTS)
def test_memory_is_summed_as_python_sums_it_at_any_length_and_alignment(start: int) -> None:
    views = [held(length + skipped)[skipped:] for skipped in (0, 3) for length in LENGTHS]
    found = sum_memory(views, [start] * len(views))
    assert list(zip(*found, strict=True)) == [expected(view, start) for view in views]


def test_runs_of_a_file_are_summed_in_any_order_near_each_other_and_apart(tmp_path: Path) -> None:
    data = held(3 * ROOM_BYTES + 77)
    (tmp_path / "file").write_bytes(data)
    chance = random.Random(5)
    at = [*sorted(chance.randrange(len(data)) for _ in range(200)), 0, 5, 3, len(data), 0]
    lengths = [min(chance.randrange(9000), len(data) - first) for first in at[:-1]] + [len(data)]
    starts = [chance.choice(STARTS) for _ in at]
    with open(tmp_path / "file", "rb") as file:
        found = sum_file(file.fileno(), FileRuns(at, lengths, starts))
    runs = zip(at, lengths, starts, strict=True)
    assert list(zip(*found, strict=True)) == [expected(data[a : a + n], s) for a, n, s in runs]


def test_a_file_that_ends_early_and_one_that_cannot_be_read_raise_what_python_raises(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"12345678")
    with open(tmp_path / "file", "rb") as file, pytest.raises(EOFError):
        sum_file(file.fileno(), FileRuns([0, 4], [4, 5], [0, 0]))
    with open(tmp_path / "file", "wb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        sum_file(file.fileno(), FileRuns([0], [4], [0]))

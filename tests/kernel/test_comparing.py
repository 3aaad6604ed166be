"""Runs of files are found equal where their bytes are, whatever their number, length, rows and place."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from intarsia.kernel.comparing import NO_FILE, OpenSide, equal_runs
from intarsia.kernel.library import has_kernel
from intarsia.kernel.room import ROOM_BYTES

pytestmark = pytest.mark.skipif(not has_kernel(), reason="the kernel is not built: no C compiler")

Run = tuple[int, int, int, int, int, int, int, int]
"""File, place and step on the left, the same on the right, rows, bytes of a row."""

SIZE = 7 * ROOM_BYTES + 77


def numbers(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def found_equal(runs: list[Run]) -> int:
    columns = [numbers(list(x)) for x in zip(*runs, strict=True)]
    return equal_runs(OpenSide(*columns[:3]), OpenSide(*columns[3:6]), *columns[6:]).equal


class Files:
    """Two files of each side, of which the right ones hold what the left ones do, elsewhere."""

    def __init__(self, folder: Path) -> None:
        chance = random.Random(7)
        self.held = [np.frombuffer(chance.randbytes(SIZE), np.uint8).copy() for _ in range(4)]
        self.names = [folder / str(k) for k in range(4)]
        self.write()
        self.fds = [os.open(name, os.O_RDWR) for name in self.names]

    def write(self) -> None:
        for name, held in zip(self.names, self.held, strict=True):
            name.write_bytes(held)

    def flip(self, file: int, place: int) -> None:
        self.held[file][place] ^= 1
        os.pwrite(self.fds[file], self.held[file][place].tobytes(), place)

    def of(self, fd: int) -> np.ndarray:
        return self.held[self.fds.index(fd)]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    made.close()


def random_run(chance: random.Random, files: Files) -> Run:
    rows = chance.choice([1, 1, 1, 2, 3, 17, 400])
    longest = SIZE // 2 // rows
    row_bytes = min(
        longest, chance.choice([1, 2, 7, 64, 500, 4096, 70_000, ROOM_BYTES, ROOM_BYTES + 9])
    )
    steps = [chance.choice([row_bytes, min(longest, 2 * row_bytes), longest]) for _ in range(2)]
    at = [chance.randrange(SIZE - rows * step + 1) for step in steps]
    left, right = chance.choice(files.fds[:2]), chance.choice(files.fds[2:])
    return (
        left,
        at[0],
        max(steps[0], row_bytes),
        right,
        at[1],
        max(steps[1], row_bytes),
        rows,
        row_bytes,
    )


def parts(files: Files, run: Run) -> list[tuple[np.ndarray, np.ndarray]]:
    left, at, step, right, to, other, rows, length = run
    return [
        (
            files.of(left)[at + k * step : at + k * step + length],
            files.of(right)[to + k * other : to + k * other + length],
        )
        for k in range(rows)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_runs_of_any_shape_are_equal_up_to_the_first_that_is_not(seed: int, files: Files) -> None:
    """Each run is made equal, so far as the later ones leave it so; then what is equal is asked of NumPy."""
    chance = random.Random(seed)
    runs = [random_run(chance, files) for _ in range(chance.choice([1, 4, 9]))]
    for run in runs:
        for here, there in parts(files, run):
            there[:] = here
    files.write()
    same = [all(np.array_equal(x, y) for x, y in parts(files, run)) for run in runs]
    expected = same.index(False) if False in same else len(runs)
    found = found_equal(runs)
    assert found <= expected
    assert (found == len(runs)) == all(same)
    plain = next((k for k, run in enumerate(runs) if run[6] > 1), len(runs))
    assert found >= min(expected, plain)


@pytest.mark.parametrize("cut", [1, 2, 3, 8])
@pytest.mark.parametrize("width", [8, 1024, 100_000])
def test_columns_of_a_matrix_are_compared_with_the_chunks_that_hold_them(
    cut: int, width: int, files: Files
) -> None:
    """Each chunk is consecutive in its file, and every so many bytes of each row on the other side."""
    rows = (SIZE - 5) // (cut * width)
    matrix = files.held[0][5 : 5 + rows * cut * width].reshape(rows, cut, width)
    runs: list[Run] = []
    at = 3
    for k in range(cut):
        files.held[2][at : at + rows * width] = matrix[:, k].reshape(-1)
        runs.append(
            (files.fds[0], 5 + k * width, cut * width, files.fds[2], at, width, rows, width)
        )
        at += rows * width
    files.write()
    turned = [(*run[3:6], *run[:3], *run[6:]) for run in runs]
    assert found_equal(runs) == found_equal(turned) == cut
    for k in range(cut):
        for wrong in (0, rows * width // 2, rows * width - 1):
            files.flip(2, runs[k][4] + wrong)
            assert found_equal(runs) <= k
            assert found_equal(turned) <= k
            files.flip(2, runs[k][4] + wrong)


def test_a_run_may_be_in_memory_and_every_bit_of_it_counts(files: Files) -> None:
    front = files.held[2][1000:1900].copy()
    data = files.held[2][1900:9900]
    files.held[0][40:8040] = data
    files.write()
    address = front.ctypes.data
    runs = [
        (NO_FILE, address, 900, files.fds[2], 1000, 900, 1, 900),
        (files.fds[0], 40, 8000, files.fds[2], 1900, 8000, 1, 8000),
    ]
    assert found_equal(runs) == 2
    front[899] ^= 1
    assert found_equal(runs) == 0
    front[899] ^= 1
    files.held[0][8039] ^= 128
    files.write()
    assert found_equal(runs) == 1


def test_neighbours_are_told_apart_by_file_and_place(files: Files) -> None:
    """What one run left in the room is taken for another only where file and place are the same."""
    files.held[3][:] = files.held[2]
    files.held[3][100:200] ^= 1
    files.held[0][:] = files.held[2]
    files.write()
    a, _, b, c = files.fds
    assert found_equal([(a, 0, 300, b, 0, 300, 1, 300), (a, 100, 100, c, 100, 100, 1, 100)]) == 1
    assert found_equal([(a, 0, 300, b, 0, 300, 1, 300), (a, 101, 100, b, 100, 100, 1, 100)]) == 1
    assert found_equal([(a, 0, 300, b, 0, 300, 1, 300), (a, 50, 100, b, 50, 100, 1, 100)]) == 2


def test_a_file_that_ends_early_and_one_that_cannot_be_read_are_not_equal(
    files: Files, tmp_path: Path
) -> None:
    files.held[2][:] = files.held[0]
    files.write()
    a, b = files.fds[0], files.fds[2]
    whole = (a, 0, 10, b, 0, 10, 1, 10)
    assert found_equal([whole, (a, SIZE - 5, 6, b, SIZE - 5, 6, 1, 6)]) < 2
    with open(tmp_path / "other", "wb") as file:
        assert found_equal([(a, 0, 10, file.fileno(), 0, 10, 1, 10)]) == 0
        assert found_equal([(file.fileno(), 0, 10, b, 0, 10, 1, 10)]) == 0
    assert found_equal([whole, whole]) == 2

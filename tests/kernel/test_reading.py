"""Runs of a file are read into their buffers, near each other and apart, whole or not at all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from intarsia.kernel.library import has_kernel
from intarsia.kernel.reading import read_runs

pytestmark = pytest.mark.skipif(not has_kernel(), reason="the kernel is not built: no C compiler")


@pytest.mark.parametrize("seed", range(20))
def test_each_buffer_has_the_bytes_of_its_run(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = chance.randbytes(200_000)
    (tmp_path / "file").write_bytes(data)
    at, runs = 0, []
    while at < len(data) and len(runs) < 300:
        length = min(chance.choice([0, 1, 700, 9000]), len(data) - at)
        runs.append((at, memoryview(bytearray(length))))
        at += length + chance.choice([0, 0, 1, 4096, 4097, -min(at, 5), 20_000])
    chance.choice([runs.reverse, lambda: None])()
    with open(tmp_path / "file", "rb") as file:
        read_runs(file.fileno(), runs)
    assert all(view == data[first : first + len(view)] for first, view in runs)


def test_a_file_that_ends_early_is_an_end_of_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345678")
    buffers = [memoryview(bytearray(4)) for _ in range(3)]
    with open(tmp_path / "file", "rb") as file, pytest.raises(EOFError):
        read_runs(file.fileno(), [(0, buffers[0]), (4, buffers[1]), (6, buffers[2])])

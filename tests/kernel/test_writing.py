"""The compiled library writes what Python writes, at the same places, and fails as it does."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from intarsia.kernel.library import has_kernel
from intarsia.kernel.writing import write_buffers
from intarsia.store.local import pwrite

pytestmark = pytest.mark.skipif(not has_kernel(), reason="the kernel is not built: no C compiler")


@pytest.mark.parametrize("seed", range(4))
def test_buffers_are_written_one_after_another_whatever_their_kind_and_length(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    lengths = [chance.choice([0, 1, 7, 4096, 65_535, 65_536, 65_537, 300_001]) for _ in range(9)]
    lengths += [chance.choice([0, 1, 7, 300]) for _ in range(200)]
    data = [chance.randbytes(length) for length in lengths]
    kinds = [bytes, memoryview, lambda x: np.frombuffer(x, np.uint8).data]
    with open(tmp_path / "file", "w+b") as file:
        write_buffers(file.fileno(), 5, [chance.choice(kinds)(x) for x in data])
    assert (tmp_path / "file").read_bytes() == bytes(5) + b"".join(data)


@pytest.mark.parametrize("count", [3, 200])
def test_many_buffers_and_few_go_to_a_file_alike_with_and_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    chance = random.Random(count)
    data = [chance.randbytes(3_000_000 // count + k) for k in range(count)]
    for name in ("with", "without"):
        with open(tmp_path / name, "w+b") as file:
            assert pwrite.write_all(file.fileno(), 77, data) == sum(map(len, data))
        monkeypatch.setattr(pwrite, "has_kernel", lambda: False)
    assert (tmp_path / "with").read_bytes() == (tmp_path / "without").read_bytes()
    assert (tmp_path / "with").read_bytes() == bytes(77) + b"".join(data)


def test_a_file_that_cannot_be_written_raises_what_python_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with open(tmp_path / "file", "rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        write_buffers(file.fileno(), 0, [b"x"])
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        write_buffers(fd, 0, [bytes(200_000)])
    os.close(fd)

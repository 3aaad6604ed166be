"""Ranges that follow each other are read by one call, and hold what each would hold alone."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from intarsia.store.local import reader, vectors
from intarsia.store.local.reader import LocalReader


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(Random(0).randbytes(60_000))
    return tmp_path / "file"


@pytest.mark.parametrize("most", [16, 3])
def test_any_ranges_in_any_order_are_read(
    file: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, whole = Random(most), file.read_bytes()
    monkeypatch.setattr(reader, "VECTORS", most)
    for _ in range(100):
        starts = [random.randrange(50_000) for _ in range(random.randrange(9))]
        starts += [at + 100 for at in starts]
        starts = sorted(starts) if random.random() < 0.7 else starts
        ranges = [(at, memoryview(bytearray(random.choice((0, 1, 100, 5000))))) for at in starts]
        LocalReader(file.parent).read(file.name, ranges)
        assert all(bytes(view) == whole[at : at + len(view)] for at, view in ranges)


def test_neighbours_take_one_call_and_kernels_that_read_less_are_asked_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, whole, read = [], file.read_bytes(), os.preadv

    def short(fd: int, views: list[memoryview], at: int) -> int:
        calls.append(at)
        return read(fd, [views[0][: 1 + len(views[0]) // 2]], at)

    def full(fd: int, views: list[memoryview], at: int) -> int:
        calls.append(at)
        return read(fd, views, at)

    ranges = [(at, memoryview(bytearray(90))) for at in range(500, 2000, 100)]
    monkeypatch.setattr(os, "preadv", full)
    LocalReader(file.parent).read(file.name, ranges)
    assert calls == [500]
    monkeypatch.setattr(os, "preadv", short)
    again = [(at, memoryview(bytearray(90))) for at, _ in ranges]
    LocalReader(file.parent).read(file.name, again)
    assert all(bytes(view) == whole[at : at + 90] for at, view in (*ranges, *again))


def test_a_file_that_ends_too_soon_is_noticed(file: Path) -> None:
    with pytest.raises(EOFError):
        LocalReader(file.parent).read(file.name, [(59_990, memoryview(bytearray(11)))])


def test_no_call_has_more_buffers_than_the_kernel_takes() -> None:
    ranges = [(3 * k, memoryview(bytes(2))) for k in range(5000)]
    assert max(len(views) for _, views in reader.in_few_calls(ranges)) <= vectors.VECTORS

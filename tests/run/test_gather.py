"""Reading copies from a real file gives what NumPy's strided indexing gives."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intarsia.dtypes import BY_NAME
from intarsia.errors import FormatError
from intarsia.layout import Loop, Piece
from intarsia.planning.coalesce import MOST_OVER_READ
from intarsia.run import gather as gathering
from intarsia.run.gather import gather
from intarsia.run.reads import Fill
from intarsia.store.reading.folder import Folder
from intarsia.value import Change

some = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SIZE = 40_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("source")
    data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    for file in ("a", "b"):
        (root / file).write_bytes(data.tobytes())
        data = data[::-1].copy()
    with Folder(root) as opened:
        yield opened


@st.composite
def strided(draw: st.DrawFn, itemsize: int) -> tuple[int, Piece]:
    """A base, and a piece that stays in the file; each place of its destination is filled once."""
    loops, reach, to = [], 1, 1
    for _ in range(draw(st.integers(0, 3))):
        n = draw(st.integers(2, 6))
        at = draw(st.sampled_from([reach, reach + 1, 3 * reach + 2, 40 * reach, 0]))
        step = draw(st.sampled_from([to, to + 1]))
        if reach + (n - 1) * at > 2000:
            break
        loops.append(Loop(n, at, step))
        reach, to = reach + (n - 1) * at, to + (n - 1) * step
    order = draw(st.permutations(loops))
    at = draw(st.integers(0, 20))
    base = draw(st.integers(0, SIZE - (reach + at) * itemsize))
    return base, Piece("", at, draw(st.integers(0, 5)), tuple(order))


def expected(data: bytes, base: int, piece: Piece, itemsize: int, out: np.ndarray) -> int:
    """Move elements one by one; how many places were filled."""
    count = 0
    for steps in np.ndindex(*(loop.n for loop in piece.loops)):
        at = piece.at + sum(x * loop.at for x, loop in zip(steps, piece.loops, strict=True))
        to = piece.to + sum(x * loop.to for x, loop in zip(steps, piece.loops, strict=True))
        element = data[base + at * itemsize : base + (at + 1) * itemsize]
        out[to * itemsize : (to + 1) * itemsize] = np.frombuffer(element, np.uint8)
        count += 1
    return count


@some
@given(st.data(), st.sampled_from(["U8", "BF16", "F32", "I64"]), st.sampled_from([1, 64, 1 << 16]))
def test_gather_moves_what_numpy_moves(folder, data, name: str, direct: int) -> None:
    dtype = BY_NAME[name]
    files = {file: folder.read_all(file) for file in ("a", "b")}
    fills, wanted = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        file = data.draw(st.sampled_from("ab"))
        base, piece = data.draw(strided(dtype.itemsize))
        last = piece.to + sum((loop.n - 1) * loop.to for loop in piece.loops)
        buffer = np.zeros((last + 1) * dtype.itemsize, np.uint8)
        want = buffer.copy()
        expected(files[file], base, piece, dtype.itemsize, want)
        fills.append(Fill(file, base, piece, Change(dtype, dtype), buffer))
        wanted.append(want)
    before = folder.read_bytes
    old, gathering.DIRECT_BYTES = gathering.DIRECT_BYTES, direct
    try:
        read = gather(folder, fills)
    finally:
        gathering.DIRECT_BYTES = old
    for fill, want in zip(fills, wanted, strict=True):
        assert np.array_equal(fill.buffer, want)
    assert read == folder.read_bytes - before
    needed = sum(fill.piece.size * dtype.itemsize for fill in fills)
    assert read <= 2 * MOST_OVER_READ * needed


def test_a_contiguous_copy_reads_its_own_bytes_once(folder) -> None:
    dtype = BY_NAME["BF16"]
    buffer = np.zeros(20_000, np.uint8)
    run = Piece("", 0, 0, (Loop(10_000, 1, 1),))
    assert gather(folder, [Fill("a", 100, run, Change(dtype, dtype), buffer)]) == 20_000
    assert buffer.tobytes() == folder.read("a", 100, 20_000)


def test_neighbouring_copies_are_read_together(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *a: (calls.append(a[2]), read(*a))[1])
    dtype = BY_NAME["U8"]
    fills = [
        Fill(
            "a",
            64 * k,
            Piece("", 0, 0, (Loop(64, 1, 1),)),
            Change(dtype, dtype),
            np.zeros(64, np.uint8),
        )
        for k in (3, 1, 2, 0)
    ]
    assert gather(folder, fills) == 256
    assert calls == [0]


def test_bytes_that_several_copies_need_are_read_once(folder, monkeypatch) -> None:
    monkeypatch.setattr(gathering, "DIRECT_BYTES", 64)
    dtype, run = BY_NAME["U8"], Piece("", 0, 0, (Loop(10_000, 1, 1),))
    fills = [
        Fill("a", k, run, Change(dtype, dtype), np.zeros(10_000, np.uint8)) for k in (0, 0, 500)
    ]
    assert gather(folder, fills) == 10_500
    for fill in fills:
        assert fill.buffer.tobytes() == folder.read("a", fill.base_bytes, 10_000)


def test_a_copy_can_cast_on_the_way(folder) -> None:
    import torch

    src, dst = BY_NAME["BF16"], BY_NAME["F32"]
    column = Piece("", 1, 2, (Loop(5, 7, 3), Loop(3, 1, 1)))
    buffer = np.zeros(4 * 20, np.uint8)
    gather(folder, [Fill("a", 2, column, Change(src, dst), buffer)])
    stored = torch.frombuffer(bytearray(folder.read("a", 2, 4000)), dtype=torch.bfloat16)
    wanted = stored.as_strided((5, 3), (7, 1), 1).float()
    found = torch.frombuffer(bytearray(buffer.tobytes()), dtype=torch.float32)[2:17].reshape(5, 3)
    assert found.view(torch.int32).equal(wanted.view(torch.int32))


def test_a_file_that_ends_early_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(10))
    dtype = BY_NAME["U8"]
    run = Piece("", 0, 0, (Loop(20, 1, 1),))
    with Folder(tmp_path) as folder, pytest.raises(FormatError, match=r"ends at byte 10; bytes \["):
        gather(folder, [Fill("short", 0, run, Change(dtype, dtype), np.zeros(20, np.uint8))])
    assert os.listdir(tmp_path) == ["short"]

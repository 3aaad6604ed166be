"""Strips are moved and summed as NumPy moves and Python sums them, whatever their rows, files and places."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from intarsia.kernel.library import has_kernel
from intarsia.kernel.moving import (
    BLOCK_BYTES,
    SIDE,
    STRIP,
    MoveError,
    move,
    write_pieces,
)
from intarsia.run.sums.checksum import remainder
from intarsia.run.sums.hashing import Sum, sum_run

pytestmark = pytest.mark.skipif(not has_kernel(), reason="the kernel is not built: no C compiler")


def parts_of(row_bytes: int, chance: random.Random) -> list[tuple[int, int]]:
    """Each row cut into a few parts, in any order: where they begin, and their widths."""
    count = min(chance.choice([1, 1, 2, 3]), row_bytes)
    cuts = [0, *sorted(chance.sample(range(1, row_bytes), count - 1)), row_bytes]
    parts = [(lo, hi - lo) for lo, hi in pairwise(cuts)]
    chance.shuffle(parts)
    return parts


@pytest.mark.parametrize("seed", range(8))
def test_strips_of_any_rows_go_from_any_files_to_any_others(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    files = {name: os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "abcxyz"}
    ends = dict.fromkeys("abcxyz", 3)
    wanted = {name: bytearray(3) for name in "xyz"}
    strips, sides = [], []
    sums, boxes = [Sum()] * 3, [b""] * 4
    for number in range(40):
        row_bytes = chance.choice([1, 1, 7, 64, 1000, 4096, 70_000, BLOCK_BYTES])
        most = 3 * BLOCK_BYTES // row_bytes + 2 if number % 8 == 0 else 2000 // row_bytes + 2
        rows = np.frombuffer(chance.randbytes((n := chance.randrange(1, most)) * row_bytes), "u1")
        rows, start = rows.reshape(n, row_bytes), chance.choice([0, 1, 8, 4095, 12_345])
        froms, tos = parts_of(row_bytes, chance), parts_of(row_bytes, chance)
        which, after = chance.randrange(3), chance.choice([0, 1, 5000, 1 << 40])
        strips.append((n, row_bytes, start, after, which, len(froms), len(tos)))
        sums[which] += sum_run(rows.reshape(-1), start, start + rows.size + after)
        for names, parts in (("abc", froms), ("xyz", tos)):
            for (offset, width), box in zip(parts, chance.sample(range(4), 4), strict=False):
                file = chance.choice(names)
                sides.append((files[file], ends[file], offset, width, box))
                data = rows[:, offset : offset + width].tobytes()
                if names == "abc":
                    os.pwrite(files[file], data, ends[file])
                else:
                    wanted[file] += data
                    boxes[box] += data
                ends[file] += len(data)
    found = move(np.array(strips, STRIP), np.array(sides, SIDE), 3, 4)
    assert found.pages.tolist() == [x.pages for x in sums]
    assert found.crcs.tolist() == [x.crc for x in sums]
    assert found.box_crcs.tolist() == [remainder(data) for data in boxes]
    assert found.box_bytes.tolist() == [len(data) for data in boxes]
    for name in "xyz":
        assert (tmp_path / name).read_bytes().ljust(3, b"\0") == bytes(wanted[name])
    for fd in files.values():
        os.close(fd)


def test_short_strips_of_one_file_are_moved_alike_in_either_order(tmp_path: Path) -> None:
    data = random.Random(0).randbytes(30_000)
    (tmp_path / "a").write_bytes(data)
    with (tmp_path / "a").open("rb") as a, (tmp_path / "x").open("w+b") as x:
        cuts = [0, 10_000, 10_001, 30_000]
        strips = [(hi - lo, 1, 0, 0, k, 1, 1) for k, (lo, hi) in enumerate(pairwise(cuts))]
        sides = [(file.fileno(), lo, 0, 1, k) for k, lo in enumerate(cuts[:-1]) for file in (a, x)]
        found = move(np.array(strips, STRIP), np.array(sides, SIDE), 3, 3)
        # Once more, backwards: nothing that lies in memory is taken for what is not.
        again = move(
            np.array(strips[::-1], STRIP),
            np.array([*sides[4:], *sides[2:4], *sides[:2]], SIDE),
            3,
            3,
        )
    assert [x.tolist() for x in found] == [x.tolist() for x in again]
    assert found.box_crcs.tolist() == [remainder(data[lo:hi]) for lo, hi in pairwise(cuts)]
    assert (tmp_path / "x").read_bytes() == data


def test_a_call_that_fails_names_its_side(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(300_000))
    short, out = os.open(tmp_path / "short", os.O_RDONLY), os.open(tmp_path / "out", 0o102, 0o600)
    full, closed = os.open("/dev/full", os.O_WRONLY), 9999

    def stopped(*moves: tuple[int, int, int], length: int = 300_000) -> tuple[int, str]:
        strips = np.array([(length, 1, 0, 0, 0, 1, 1) for _ in moves], STRIP)
        sides = [side for a, at, b in moves for side in ((a, at, 0, 1, 0), (b, 0, 0, 1, 0))]
        with pytest.raises(MoveError) as raised:
            move(strips, np.array(sides, SIDE), 1, 1)
        return raised.value.number, repr(raised.value.error)

    assert stopped((short, 0, out), length=300_001) == (0, "EOFError()")
    assert stopped((short, 0, out), (closed, 0, out))[0] == 2
    assert stopped((short, 0, out), (short, 0, full)) == (
        3,
        "OSError(28, 'No space left on device')",
    )
    assert stopped((short, 0, short))[0] == 1
    # Those that are read by one call are told apart where it fails.
    assert stopped((short, 299_980, out), (short, 299_990, out), length=10 + 1)[0] == 2
    assert stopped(
        (short, 299_980, out), (short, 299_990, out), (short, 300_000, out), length=10
    ) == (
        4,
        "EOFError()",
    )
    for fd in (short, out, full):
        os.close(fd)


@pytest.mark.parametrize(
    ("strip", "side"),
    [
        ((1, 8, 0, 0, 0, 1, 0), (0, 0, 3, 6, 0)),
        ((1, 8, 0, 0, 0, 1, 0), (0, 0, 9, 0, 0)),
        ((1, BLOCK_BYTES + 1, 0, 0, 0, 1, 0), (0, 0, 0, 1, 0)),
        ((1, 0, 0, 0, 0, 1, 0), (0, 0, 0, 0, 0)),
        ((1, 8, 0, 0, 1, 1, 0), (0, 0, 0, 8, 0)),
        ((1, 8, 0, 0, 0, 1, 0), (0, 0, 0, 8, 1)),
        ((1, 8, 0, 0, 0, 1, 1), (0, 0, 0, 8, 0)),
    ],
)
def test_what_leads_out_of_rows_or_sums_is_not_handed_to_the_library(strip, side) -> None:
    with pytest.raises(ValueError, match="no part of the rows"):
        move(np.array([strip], STRIP), np.array([side], SIDE), 1, 1)


def test_pieces_are_written_to_their_files_and_a_failure_names_the_first_of_its_call(
    tmp_path: Path,
) -> None:
    data = np.frombuffer(random.Random(1).randbytes(200_000), np.uint8)
    full = os.open("/dev/full", os.O_WRONLY)
    a, b = (os.open(tmp_path / name, 0o102, 0o600) for name in "ab")

    def write(*pieces: tuple[int, int, int, int]) -> None:
        columns = np.array([(fd, at, data.ctypes.data + lo, n) for fd, at, lo, n in pieces], "u8")
        write_pieces(np.ascontiguousarray(columns.T))

    write(
        (a, 0, 10, 3),
        (a, 3, 100, 150_000),
        (a, 150_010, 0, 0),
        (a, 150_010, 7, 2),
        (b, 150_012, 1, 1),
    )
    raw = data.tobytes()
    held = raw[10:13] + raw[100:150_100] + bytes(7) + raw[7:9]
    assert (tmp_path / "a").read_bytes() == held
    assert (tmp_path / "b").read_bytes() == bytes(150_012) + raw[1:2]
    with pytest.raises(MoveError) as raised:
        write((a, 0, 10, 3), (full, 0, 0, 5), (full, 5, 0, 5), (b, 0, 0, 1))
    assert (raised.value.number, str(raised.value.error)) == (
        1,
        "[Errno 28] No space left on device",
    )
    for fd in (a, b, full):
        os.close(fd)


def test_what_lies_in_memory_is_forgotten_when_something_else_takes_its_place(
    tmp_path: Path,
) -> None:
    data = random.Random(2).randbytes(400)
    (tmp_path / "a").write_bytes(data)
    with (tmp_path / "a").open("rb") as a, (tmp_path / "x").open("w+b") as x:
        run = [(a.fileno(), 0, 0, 1, 0), (x.fileno(), 0, 0, 1, 0)]
        halves = [(a.fileno(), 200 + 10 * k, 2 * k, 2, 0) for k in range(2)]
        strips = [(100, 1, 0, 0, 0, 1, 1), (5, 4, 0, 0, 1, 2, 1), (100, 1, 0, 0, 2, 1, 1)]
        sides = [*run, *halves, (x.fileno(), 100, 0, 4, 1), *run]
        sides[-1] = (x.fileno(), 200, 0, 1, 2)
        found = move(np.array(strips, STRIP), np.array(sides, SIDE), 3, 3)
    assert found.box_crcs[0] == found.box_crcs[2] == remainder(data[:100])
    assert (tmp_path / "x").read_bytes()[200:] == data[:100]

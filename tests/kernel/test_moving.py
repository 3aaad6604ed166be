"""Strips are moved and summed as NumPy moves and Python sums them, whatever their rows, files and places."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from intarsia.kernel.library import has_kernel
from intarsia.kernel.moving import BLOCK_BYTES, MoveError, Side, Strip, move
from intarsia.run.sums.checksum import remainder
from intarsia.run.sums.hashing import sum_run

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
    read = {name: os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "abc"}
    written = {name: os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "xyz"}
    ends = dict.fromkeys("abcxyz", 3)
    wanted = {name: bytearray(3) for name in "xyz"}
    strips, sums = [], []
    for _ in range(5):
        row_bytes = chance.choice([1, 1, 7, 64, 1000, 4096, 70_000, BLOCK_BYTES])
        most = 3 * BLOCK_BYTES // row_bytes + 2
        rows = np.frombuffer(chance.randbytes((n := chance.randrange(1, most)) * row_bytes), "u1")
        rows, start = rows.reshape(n, row_bytes), chance.choice([0, 1, 8, 4095, 12_345])
        sides: dict[str, list[Side]] = {"abc": [], "xyz": []}
        crcs = []
        for names in sides:
            for offset, width in parts_of(row_bytes, chance):
                file = chance.choice(names)
                sides[names].append(Side(file, ends[file], offset, width))
                ends[file] += n * width
                data = rows[:, offset : offset + width].tobytes()
                if names == "abc":
                    os.pwrite(read[file], data, ends[file] - len(data))
                else:
                    wanted[file] += data
                    crcs.append(remainder(data))
        strips.append(Strip(n, row_bytes, start, sides["abc"], sides["xyz"]))
        both = sum_run(rows.reshape(-1), start, start + rows.size)
        sums.append((both.pages, both.crc, crcs))
    assert [tuple(found) for found in move(strips, read, written)] == sums
    for name in "xyz":
        assert (tmp_path / name).read_bytes().ljust(3, b"\0") == bytes(wanted[name])
    for fd in (*read.values(), *written.values()):
        os.close(fd)


def test_a_call_that_fails_names_its_side(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(300_000))
    short, out = os.open(tmp_path / "short", os.O_RDONLY), os.open(tmp_path / "out", 0o102, 0o600)
    full = os.open("/dev/full", os.O_WRONLY)
    files = {"short": short, "closed": 9999}, {"out": out, "full": full, "read": short}

    def stopped(*sides: tuple[str, str], length: int = 300_000) -> tuple[int, str]:
        strips = [Strip(length, 1, 0, [Side(a, 0, 0, 1)], [Side(b, 0, 0, 1)]) for a, b in sides]
        with pytest.raises(MoveError) as raised:
            move(strips, *files)
        return raised.value.side, repr(raised.value.error)

    assert stopped(("short", "out"), length=300_001) == (0, "EOFError()")
    assert stopped(("short", "out"), ("closed", "out"))[0] == 2
    assert stopped(("short", "out"), ("short", "full")) == (
        3,
        "OSError(28, 'No space left on device')",
    )
    assert stopped(("short", "read"))[0] == 1
    for fd in (short, out, full):
        os.close(fd)


def test_sides_that_are_not_in_their_rows_are_not_handed_to_the_library() -> None:
    for side, row_bytes in ((Side("a", 0, 3, 6), 8), (Side("a", 0, 0, 1), BLOCK_BYTES + 1)):
        with pytest.raises(ValueError, match="no part of the rows"):
            move([Strip(1, row_bytes, 0, [side], [side])], {"a": 0}, {"a": 0})

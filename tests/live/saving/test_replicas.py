"""What ranks hold of a tensor is saved where their parts tile it, and refused otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from intarsia.dtypes import BY_NAME
from intarsia.errors import CoverageError
from intarsia.live.saving.parts import HeldBox, HeldPart
from intarsia.live.saving.replicas import holders_of
from intarsia.live.saving.snapshot import Snapshot
from intarsia.live.saving.write import write
from intarsia.mesh import Box
from intarsia.run.ranks.crew import Crew

F32 = BY_NAME["F32"]


def told(*rows: tuple[int, int]) -> list[HeldBox]:
    """What one rank says of its rows of `w`."""
    return [HeldBox("w", F32, (8, 2), Box((lo, 0), (hi - lo, 2)), ()) for lo, hi in rows]


def test_parts_that_tile_a_tensor_are_proven() -> None:
    found = holders_of([told((0, 4)), told((4, 8)), told((0, 4))])["w"]
    assert [len(held) for held in found.values()] == [2, 1]


WRONG = {
    "overlap with the right volume": ([[(0, 4)], [(3, 7)]], r"\[0:4, 0:2\] and \[3:7, 0:2\] overlap"),
    "a hole": ([[(0, 4)], [(5, 8)]], r"2 of 16 elements are in none .* first missing \[4, 0\]"),
    "beyond the end": ([[(0, 4)], [(4, 9)]], r"part \[4:9, 0:2\] leaves"),
    "a part twice on one rank": ([[(0, 4), (0, 4)], [(4, 8)]], "rank 0 holds .* twice"),
}  # fmt: skip


@pytest.mark.parametrize(("ranks", "text"), WRONG.values(), ids=WRONG)
def test_parts_that_do_not_are_refused(ranks: list[list[tuple[int, int]]], text: str) -> None:
    with pytest.raises(CoverageError, match=text):
        holders_of([told(*rows) for rows in ranks])


@pytest.mark.parametrize(
    ("rows", "memory", "text"),
    [
        ([(0, 4), (3, 7)], 4, "overlap"),
        ([(0, 4)], 4, r"first missing \[4, 0\]"),
        ([(0, 4), (4, 8)], 3, "has 32 bytes, the memory 24"),
    ],
)
def test_a_save_of_wrong_parts_leaves_nothing(
    tmp_path: Path, rows: list[tuple[int, int]], memory: int, text: str
) -> None:
    parts = [
        HeldPart("w", F32, (8, 2), Box((lo, 0), (hi - lo, 2)), (), torch.ones(memory, 2))
        for lo, hi in rows
    ]
    what = Snapshot({}, lambda _: iter(parts), {}, {}, None)
    with pytest.raises(CoverageError, match=text):
        write(tmp_path / "out", what, Crew())
    assert not list(tmp_path.iterdir())

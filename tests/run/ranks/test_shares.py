"""Steps are divided among ranks: each goes to one of them, all have as many bytes, and files are theirs."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from intarsia.dtypes import BY_NAME
from intarsia.format.base import Arrangement, Slot
from intarsia.mesh import Box
from intarsia.run.ranks.shares import MANY_FILES, share_of


def cut(files: int, rows: int, tensors: int = 3) -> tuple[list[Any], Arrangement]:
    """Tensors of rows, each cut over all files; a step is a row."""
    names = [f"file-{k}" for k in range(files)]
    each = rows // files
    slots = {
        f"tensor-{t}": tuple(
            Slot(Box((k * each, 0), (each, 8)), name, 0) for k, name in enumerate(names)
        )
        for t in range(tensors)
    }
    proven = [
        SimpleNamespace(target=SimpleNamespace(name=name, dtype=BY_NAME["F32"])) for name in slots
    ]
    steps = [[((one, Box((row, 0), (1, 8))),)] for one in proven for row in range(rows)]
    return steps, Arrangement(dict.fromkeys(names, 0), slots)


def files_in(share: list[Any], arrangement: Arrangement) -> set[str]:
    return {
        slot.file
        for step in share
        for proven, box in chain(*step)
        for slot in arrangement.slots[proven.target.name]
        if slot.box.meet(box)
    }


@pytest.mark.parametrize("files", [1, 4, 8, MANY_FILES])
@pytest.mark.parametrize("ranks", [1, 3, 8, 20])
def test_every_step_has_one_rank_and_all_have_as_many_bytes(files: int, ranks: int) -> None:
    steps, arrangement = cut(files, 2 * MANY_FILES)
    shares = [share_of(steps, arrangement, rank, ranks) for rank in range(ranks)]
    assert sorted(map(id, chain(*shares))) == sorted(map(id, steps))
    counts = [*map(len, shares)]
    assert max(counts) - min(counts) <= 1


def test_each_of_as_many_ranks_as_files_writes_a_file_of_its_own() -> None:
    steps, arrangement = cut(8, 64)
    for rank in range(8):
        share = share_of(steps, arrangement, rank, 8)
        assert files_in(share, arrangement) == {f"file-{rank}"}


@pytest.mark.parametrize("ranks", [2, 3])
def test_steps_without_bytes_have_a_rank_too(ranks: int) -> None:
    steps, arrangement = cut(4, 16, tensors=1)
    proven = steps[0][0][0][0]
    empty = [((proven, Box((16, 0), (0, 8))),)]
    for given in ([*steps, empty], [empty], []):
        shares = [share_of(given, arrangement, rank, ranks) for rank in range(ranks)]
        assert sorted(map(id, chain(*shares))) == sorted(map(id, given))

"""What fills a process's memory: proven once, then read window by window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.dtypes import BY_NAME
from intarsia.errors import CoverageError
from intarsia.layout import Layout, concat, padding
from intarsia.live.loading.filling.fill import SHARE, prove, windows_of_fillings
from intarsia.live.model.holding import Holding
from intarsia.mesh import Box
from intarsia.planning.copy import Copy
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored
from intarsia.planning.window import flat_start, windows
from tests.checkpoints import assert_same, write_hf
from tests.oracle.layouts import PADDING, pairs

F32 = BY_NAME["F32"]
W = Layout.of("w", (6, 10))


def source(*rows: tuple[int, int]) -> Manifest:
    """A checkpoint with `w` in chunks of these rows, each in a file of its own."""
    chunks = tuple(
        Chunk(Box((lo, 0), (hi - lo, 10)), f"{lo}.bin", 0, (hi - lo) * 40) for lo, hi in rows
    )
    stored = Stored("w", F32, W, chunks)
    return Manifest("hf", "somewhere", {"w": stored}, {"w": Logical("w", (6, 10), F32)}, {})


def holding(layout: Layout) -> Holding:
    return Holding("mine", layout, torch.empty(layout.shape))


def ids(copies: list[Copy], count: int) -> list[int]:
    """Which element of `w` copies put at each place, where they put one."""
    found = np.full(count, PADDING)
    for copy in copies:
        for at, to in pairs(copy.piece):
            assert found[to] == PADDING, "a place is written once"
            found[to] = copy.chunk.box.offsets[0] * 10 + at
    return list(found)


LAYOUTS = {
    "as stored": W,
    "columns": W.narrow(1, 3, 8),
    "transposed": W.permute(1, 0),
    "padded": concat([W, padding(2, 10)]),
    "flat": W.reshape(-1).narrow(0, 7, 48),
}


@pytest.mark.parametrize("limit", [4, 24, 40, 72, 1000])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_stretches_of_windows_are_the_copies_of_the_whole(layout: Layout, limit: int) -> None:
    (filling,) = prove([holding(layout)], source((0, 1), (1, 4), (4, 6)))
    whole = Box.whole(layout.shape)
    found: list[int] = []
    for box in windows(layout.shape, 4, limit):
        start = flat_start(box, whole)
        found += ids(filling.proven.stretch(start, start + box.size), box.size)
    assert found == ids(filling.proven.copies(whole), layout.size)
    assert sum(x != PADDING for x in found) == layout.mapped


def test_a_holding_with_an_element_that_no_chunk_has_is_refused() -> None:
    with pytest.raises(CoverageError, match=r"20 of 60 elements .* first missing \[1, 0\]"):
        prove([holding(W)], source((0, 1), (3, 6)))


def test_a_holding_without_elements_asks_for_nothing() -> None:
    empty = holding(W.narrow(0, 2, 2))
    (filling,) = prove([empty], source((0, 6)))
    assert filling.proven.stretch(0, 0) == []


def test_what_lies_beside_each_other_in_a_file_is_read_beside_each_other() -> None:
    names, shape, nbytes = "abcd", (2, 16), 128
    layouts = {name: Layout.of(name, shape) for name in names}
    stored = {
        name: Stored(name, F32, layouts[name], (Chunk(Box.whole(shape), "f", k * nbytes, nbytes),))
        for k, name in enumerate(names)
    }
    logical = {name: Logical(name, shape, F32) for name in names}
    manifest = Manifest("hf", "somewhere", stored, logical, {})
    odd, even = (
        Holding(both, concat([layouts[x] for x in both]), torch.empty(4, 16))
        for both in ("ac", "bd")
    )
    found = windows_of_fillings(prove([odd, even], manifest), nbytes * SHARE)
    read = [
        filling.proven.stretch(box.offsets[0] * 16, box.offsets[0] * 16 + box.size)
        for filling, box in found
    ]
    assert [copy.stored.name for copies in read for copy in copies] == ["a", "b", "c", "d"]


def test_memory_that_means_other_numbers_than_it_holds_is_filled_by_torch(tmp_path: Path) -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    stored = {"conjugate": numbers, "negative": torch.tensor([5.0]), "alone": torch.tensor([6.0])}
    into = {
        "conjugate": torch.zeros(2, dtype=torch.complex64).conj(),
        "negative": torch.zeros(1, dtype=torch.complex64).conj().imag,
        "alone": torch.zeros(7)[::7],
    }
    assert into["conjugate"].is_conj()
    assert into["negative"].is_neg()
    assert into["alone"].stride() == (7,)
    intarsia.load(write_hf(tmp_path / "src", stored), into=into)
    assert_same(into, stored)
    widened = {"alone": torch.zeros(7, dtype=torch.float64)[::7]}
    intarsia.load(tmp_path / "src", into=widened, strict=False)
    assert widened["alone"].item() == 6


def test_torch_does_not_go_back_through_weights_that_were_filled_in_between(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    intarsia.save(tmp_path / "a", model)
    loss = model(torch.ones(3)).sum()
    intarsia.load(tmp_path / "a", into=model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    model(torch.ones(3)).sum().backward()


def test_tensors_of_inference_mode_are_filled(tmp_path: Path) -> None:
    with torch.inference_mode():
        into = {"x": torch.zeros(3)}
    intarsia.load(write_hf(tmp_path / "src", {"x": torch.ones(3)}), into=into)
    assert into["x"].tolist() == [1, 1, 1]

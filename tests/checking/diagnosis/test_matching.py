"""Rows are found again, and the order that they come in is named."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import intarsia
from intarsia.checking.diagnosis.rearranged.keys import found_again
from intarsia.checking.diagnosis.rearranged.matching import fewest_blocks, strided
from tests.checkpoints import write_hf


@given(st.permutations(range(20)))
def test_rows_that_are_all_different_are_found(order: list[int]) -> None:
    keys = [bytes([k]) for k in range(20)]
    assert found_again(keys, [keys[k] for k in order]).tolist() == order


def test_of_rows_alike_the_one_with_the_same_followers_is_meant() -> None:
    keys = [b"0", b"x", b"a", b"0", b"x", b"b"]
    assert found_again(keys, keys[3:] + keys[:3]).tolist() == [3, 4, 5, 0, 1, 2]


def test_rows_of_nowhere_are_not_found() -> None:
    assert found_again([b"a"], [b"b"]).tolist() == [-1]


@pytest.mark.parametrize(
    ("rows", "order"),
    [(12, [1, 0]), (12, [2, 0, 1]), (50, [0, 2, 1]), (7, [1, 0]), (8, [3, 2, 1, 0])],
)
def test_blocks_are_those_of_a_chunked_axis(rows: int, order: list[int]) -> None:
    step = -(-rows // len(order))
    moved = np.concatenate([np.arange(rows)[k * step : (k + 1) * step] for k in order])
    assert fewest_blocks(moved) == order


def test_an_order_of_single_rows_has_no_larger_blocks() -> None:
    found = fewest_blocks([1, 0, 3, 2, 5, 4])
    assert found is not None
    assert len(found) == 6


@given(st.integers(2, 6), st.integers(2, 6))
def test_strided_shards_tell_their_mesh(fsdp: int, tp: int) -> None:
    order = np.arange(fsdp * tp).reshape(tp, fsdp).T.reshape(-1).tolist()
    assert strided(order) == (fsdp, tp)


@pytest.mark.parametrize(("wrong", "back"), [("a", "b"), ("b", "a")])
def test_strided_shards_are_named_as_either_side_may_hold_them(
    tmp_path: Path, wrong: str, back: str
) -> None:
    """Two shards over three read as plain on one side are three over two on the other."""
    x = torch.randn(24, 40, generator=torch.Generator().manual_seed(1))
    plain = torch.cat([part.chunk(2)[d] for d in range(2) for part in x.chunk(3)])
    write_hf(tmp_path / wrong, {"w": plain}, None)
    write_hf(tmp_path / back, {"w": x}, None)
    (found,) = intarsia.verify(tmp_path / "a", tmp_path / "b").different
    told = re.findall(r"(fsdp=. over tp=.)(?: is read as plain)? in ([AB])", found.diagnosis)
    either = {("fsdp=2 over tp=3", wrong.upper()), ("fsdp=3 over tp=2", back.upper())}
    assert {*told} == either


class Counted(bytes):
    """A key that counts how often it is compared with another."""

    compared = 0
    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return bytes.__eq__(self, other)


@pytest.mark.parametrize("rare", [0.002, 0.1])
def test_rows_that_are_nearly_all_alike_are_compared_a_few_times_each(rare: float) -> None:
    random = np.random.default_rng(0)
    left, right = (
        [Counted(bytes([k])) for k in np.where(random.random(4096) < rare, random.integers(9, size=4096), 9)]
        for _ in range(2)
    )  # fmt: skip
    Counted.compared = 0
    order = found_again(left, right)
    assert Counted.compared <= 4 * len(left)
    found = order >= 0
    assert found.mean() > 0.9
    assert all(bytes(left[j]) == bytes(key) for j, key in zip(order[found], np.array(right, object)[found], strict=True))  # fmt: skip

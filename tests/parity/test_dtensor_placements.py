"""Shards as layouts against torch's own placements, which cut real tensors here.

torch reads `_StridedShard` in two ways.  The *spec* reading applies placements from left to
right (`distribute_tensor`, checkpoint metadata); the *data* reading undoes the stride and cuts
with plain chunks in another order of the mesh axes (what `fully_shard` over tensor parallel puts
into memory).  Both are layout expressions, and they part where an inner split is uneven.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch.distributed.tensor import _utils as dtensor
from torch.distributed.tensor import placement_types

from intarsia.layout import Layout, chunk, concat, cover
from tests.oracle.layouts import ids

Replicate, Shard = placement_types.Replicate, placement_types.Shard
StridedShard = placement_types._StridedShard

MESH = (4, 2)
COORDINATES = list(product(range(MESH[0]), range(MESH[1])))


def strided(x: Layout, split_factor: int, n: int, i: int, axis: int) -> Layout:
    """`_StridedShard(axis, split_factor)` on coordinate `i` of a mesh axis of size `n`."""
    return concat([chunk(part, n, axis)[i] for part in chunk(x, split_factor, axis)], axis)


def shard(x: Layout, placement: object, n: int, i: int) -> Layout:
    """What coordinate `i` of a mesh axis of size `n` keeps of `x`."""
    if isinstance(placement, StridedShard):
        return strided(x, placement.split_factor, n, i, placement.dim)
    if isinstance(placement, Shard):
        return chunk(x, n, placement.dim)[i]
    return x


def torch_shard(t, placement, n: int, i: int):  # type: ignore[no-untyped-def]
    if isinstance(placement, Replicate):
        return t
    return placement._split_tensor(t, n, with_padding=False)[0][i]


def by_spec(start, cut, placements, coordinate):  # type: ignore[no-untyped-def]
    """Placements applied from left to right, with torch's or with our way to cut."""
    for placement, n, i in zip(placements, MESH, coordinate, strict=True):
        start = cut(start, placement, n, i)
    return start


def whole(*shape: int):  # type: ignore[no-untyped-def]
    return Layout.of("w", shape), torch.arange(math.prod(shape)).reshape(shape)


def same(x: Layout, t: object) -> bool:
    return np.array_equal(ids(x), np.asarray(t))


def first_rows(x: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The smallest index on each axis, or its size where a rank holds nothing: DTensor's offset."""
    a = ids(x)
    if not a.size:
        return tuple(0 if n == m else m for n, m in zip(a.shape, shape, strict=True))
    return tuple(int(i) for i in np.unravel_index(a.reshape(-1)[0], shape))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("rows", [1, 5, 6, 7, 12])
def test_shard_is_a_chunk_even_or_not(rows: int, n: int, axis: int) -> None:
    x, t = whole(*((rows, 3) if axis == 0 else (3, rows)))
    for i in range(n):
        assert same(chunk(x, n, axis)[i], torch_shard(t, Shard(axis), n, i))


@pytest.mark.parametrize("split_factor", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 4, 7, 12, 13, 24])
def test_strided_shard_is_a_part_of_every_chunk(rows: int, n: int, split_factor: int) -> None:
    x, t = whole(rows, 2)
    placement = StridedShard(0, split_factor=split_factor)
    ours = [strided(x, split_factor, n, i, 0) for i in range(n)]
    assert all(same(part, torch_shard(t, placement, n, i)) for i, part in enumerate(ours))
    assert cover(x, ours).exact


PLACEMENTS = [
    (Shard(0), Shard(0)),
    (Shard(0), Shard(1)),
    (Shard(1), Shard(0)),
    (Shard(0), Replicate()),
    (Replicate(), Shard(1)),
    (Replicate(), Replicate()),
    (StridedShard(0, split_factor=2), Shard(0)),
    (Shard(0), StridedShard(0, split_factor=2)),
    (Shard(1), StridedShard(0, split_factor=3)),
    (StridedShard(0, split_factor=2), Replicate()),
    (StridedShard(0, split_factor=2), StridedShard(0, split_factor=2)),
]


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
@pytest.mark.parametrize("shape", [(16, 8), (11, 5), (3, 9), (1, 1), (0, 4)], ids=str)
def test_nested_placements_cut_from_left_to_right(placements, shape) -> None:  # type: ignore[no-untyped-def]
    x, t = whole(*shape)
    for coordinate in COORDINATES:
        ours = by_spec(x, shard, placements, coordinate)
        assert same(ours, by_spec(t, torch_shard, placements, coordinate))


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
@pytest.mark.parametrize("shape", [(16, 8), (11, 5), (3, 9)], ids=str)
def test_local_shape_and_offset_are_those_of_the_layout(placements, shape) -> None:  # type: ignore[no-untyped-def]
    x, _ = whole(*shape)
    for coordinate in COORDINATES:
        ours = by_spec(x, shard, placements, coordinate)
        local, offset = dtensor._compute_local_shape_and_global_offset(
            shape, MESH, list(coordinate), placements
        )
        assert ours.shape == tuple(local)
        if ours.size:
            assert first_rows(ours, shape) == tuple(offset)


@pytest.mark.parametrize("placements", PLACEMENTS[:3], ids=str)
def test_the_shards_of_all_coordinates_cover_the_tensor(placements) -> None:  # type: ignore[no-untyped-def]
    x, _ = whole(11, 5)
    assert cover(x, [by_spec(x, shard, placements, c) for c in COORDINATES]).exact


def by_data(start, cut, coordinate):  # type: ignore[no-untyped-def]
    """FSDP over tensor parallel in memory: the tensor-parallel block first, then its FSDP part."""
    (d, t), (dp, tp) = coordinate, MESH
    return cut(cut(start, Shard(0), tp, t), Shard(0), dp, d)


FSDP_OVER_TP = (StridedShard(0, split_factor=MESH[1]), Shard(0))


@pytest.mark.parametrize("rows", range(1, 33))
def test_the_data_reading_is_plain_chunks_in_the_other_order(rows: int) -> None:
    x, t = whole(rows, 2)
    parts = [by_data(x, shard, c) for c in COORDINATES]
    assert all(
        same(ours, by_data(t, torch_shard, c)) for ours, c in zip(parts, COORDINATES, strict=True)
    )
    assert all(len(part.pieces) <= 1 for part in parts)
    assert cover(x, parts).exact


@pytest.mark.parametrize("rows", range(2, 33, 2))
def test_both_readings_agree_where_tensor_parallel_is_even(rows: int) -> None:
    x, _ = whole(rows, 2)
    for c in COORDINATES:
        assert np.array_equal(ids(by_data(x, shard, c)), ids(by_spec(x, shard, FSDP_OVER_TP, c)))


def test_the_readings_part_where_it_is_not() -> None:
    x, _ = whole(9, 1)
    last = [(3, 0), (3, 1)]
    assert [ids(by_data(x, shard, c)).ravel().tolist() for c in last] == [[], [8]]
    assert [ids(by_spec(x, shard, FSDP_OVER_TP, c)).ravel().tolist() for c in last] == [[8], []]

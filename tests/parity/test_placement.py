"""Our reading of DTensor placements is torch's, on every mesh and size that we try."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor.placement_types import _StridedShard

from intarsia.errors import LayoutError
from intarsia.layout import Layout
from intarsia.mesh import Mesh, Rule
from intarsia.placement import Placement, Replicate, Shard, Strided, boxes, from_torch, local
from tests.oracle.layouts import ids

BASE = {"w": 0}


def rows(x: Layout) -> list[int]:
    return ids(x, BASE).reshape(-1).tolist()


def test_torch_placements_become_values() -> None:
    found = from_torch((_StridedShard(0, split_factor=2), TorchShard(1), TorchReplicate()))
    assert found == (Strided(0, 2), Shard(1), Replicate())


def test_a_partial_placement_is_refused() -> None:
    from torch.distributed.tensor import Partial

    with pytest.raises(LayoutError, match="summands"):
        from_torch((Partial(),))


def placements_of(rule: Rule, mesh: Mesh, ndim: int) -> dict[str, Placement]:
    """The placements, by mesh axis, that cut a tensor as a rule does."""
    if rule.is_expert:
        sizes = {"fsdp": mesh.expert_fsdp, "ep": mesh.ep, "tp": mesh.etp}
        axes = {"ep": rule.ep, "tp": rule.tp}
    else:
        sizes = {"fsdp": mesh.fsdp, "tp": mesh.tp}
        axes = {"tp": rule.tp}
    found: dict[str, Placement] = {"replicate": Replicate()}
    first = prod(sizes[name] for name, axis in axes.items() if axis == 0)
    if not ndim or sizes["fsdp"] == 1:
        found["fsdp"] = Replicate()
    else:
        found["fsdp"] = Strided(0, first) if first > 1 else Shard(0)
    for name, axis in axes.items():
        found[name] = Replicate() if axis is None or sizes[name] == 1 else Shard(axis)
    return found


@pytest.mark.parametrize("n", [1, 5, 8, 9, 17, 24])
@pytest.mark.parametrize("shape", [(2, 2), (4, 2), (2, 4), (3, 2)])
def test_fsdp_over_tp_is_the_block_of_tp_then_the_part_of_fsdp(
    n: int, shape: tuple[int, int]
) -> None:
    dp, tp = shape
    whole = np.arange(n)
    for d, t in itertools.product(range(dp), range(tp)):
        got = rows(local(Layout.of("w", (n,)), shape, (Strided(0, tp), Shard(0)), (d, t)))
        block = torch.chunk(torch.from_numpy(whole), tp)
        mine = block[t] if t < len(block) else torch.empty(0, dtype=torch.int64)
        parts = torch.chunk(mine, dp)
        want = parts[d].tolist() if d < len(parts) else []
        assert got == want


@pytest.mark.parametrize("n", [4, 9, 12, 17])
@pytest.mark.parametrize("split", [2, 3, 4])
def test_the_literal_reading_is_what_strided_shard_splits(n: int, split: int) -> None:
    placement = _StridedShard(0, split_factor=split)
    parts, _ = placement._split_tensor(torch.arange(n), 4, with_padding=False, contiguous=True)
    for i, part in enumerate(parts):
        got = rows(local(Layout.of("w", (n,)), (4,), (Strided(0, split),), (i,), literal=True))
        assert got == part.tolist()


def test_a_split_that_no_order_explains_is_read_literally() -> None:
    x = Layout.of("w", (8,))
    assert rows(local(x, (2, 2), (Strided(0, 2), Replicate()), (0, 1))) == [0, 1, 4, 5]


@pytest.mark.parametrize("blocks", [2, 3])
@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (5, 2), (2, 3), (4, 1), (1, 2)])
def test_fsdp_over_an_interleave_cuts_what_the_tp_rank_holds(
    blocks: int, shape: tuple[int, int]
) -> None:
    """As `fully_shard` makes it of a gated projection: its split counts the ranks alone."""
    dp, tp = shape
    n = blocks * tp * 5
    outer = Strided(0, tp) if tp > 1 else Shard(0)
    for d, t in itertools.product(range(dp), range(tp)):
        got = rows(local(Layout.of("w", (n,)), shape, (outer, Strided(0, blocks)), (d, t)))
        mine = torch.cat([b.chunk(tp)[t] for b in torch.arange(n).chunk(blocks)])
        parts = mine.chunk(dp)
        assert got == (parts[d].tolist() if d < len(parts) else [])


@pytest.mark.parametrize("place", [(0, 0), (1, 1), (2, 1)])
def test_boxes_hold_what_the_layout_does(place: tuple[int, int]) -> None:
    shape, mesh = (20, 6), (3, 2)
    placements = (Strided(0, 2), Strided(0, 2))
    whole = torch.arange(120).reshape(shape)
    part = torch.tensor(rows(local(Layout.of("w", shape), mesh, placements, place))).reshape(-1, 6)
    found = boxes(shape, mesh, placements, place)
    assert sum(to.size for _, to in found) == part.numel()
    for at, to in found:
        (row, column), (height, width) = to.offsets, to.shape
        held = part[at.offsets[0] : at.offsets[0] + height]
        assert held.equal(whole[row : row + height, column : column + width])


@pytest.mark.parametrize("rule", [Rule(), Rule(tp=0), Rule(tp=1)])
@pytest.mark.parametrize("text", ["tp=2,fsdp=3", "fsdp=4", "tp=4", "tp=2,fsdp=2,replicate=2"])
def test_the_placements_of_a_rule_cut_as_the_mesh_does(rule: Rule, text: str) -> None:
    mesh, shape = Mesh.parse(text), (7, 6)
    named = placements_of(rule, mesh, 2)
    for rank in range(mesh.size):
        at, box = mesh.place(rank), mesh.box(shape, rule, rank)
        assert box is not None
        cut = local(
            Layout.of("w", shape),
            (mesh.replicate, mesh.fsdp, mesh.tp),
            (named["replicate"], named["fsdp"], named["tp"]),
            (at.replicate, at.fsdp, at.tp),
        )
        assert cut.shape == box.shape
        assert rows(cut) == rows(Layout.of("w", shape).box(box.offsets, box.shape))


@pytest.mark.parametrize("stacked", [Rule(ep=0), Rule(ep=0, tp=1), Rule(ep=0, tp=2)])
def test_stacked_experts_are_cut_as_their_placements_say(stacked: Rule) -> None:
    mesh, shape = Mesh.parse("ep=2,etp=2,fsdp=8"), (6, 4, 6)
    named = placements_of(stacked, mesh, 3)
    for rank in range(mesh.size):
        at, box = mesh.place(rank), mesh.box(shape, stacked, rank)
        assert box is not None
        cut = local(
            Layout.of("w", shape),
            (mesh.expert_fsdp, mesh.ep, mesh.etp),
            (named["fsdp"], named["ep"], named["tp"]),
            (at.expert_fsdp, at.ep, at.etp),
        )
        assert rows(cut) == rows(Layout.of("w", shape).box(box.offsets, box.shape))

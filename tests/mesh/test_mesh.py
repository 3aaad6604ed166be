"""Meshes cut tensors into boxes that tile them, and every way to ask for the boxes agrees."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import UsageError
from intarsia.layout import Layout, chunk
from intarsia.mesh import Box, Grid, Mesh, Rule, share
from tests.oracle.layouts import ids

some = settings(max_examples=100, deadline=None)


@st.composite
def meshes(draw: st.DrawFn, most: int = 48) -> Mesh:
    """Any mesh of at most `most` ranks."""
    sizes = {}
    for axis in draw(st.permutations(["tp", "etp", "ep", "pp", "cp", "fsdp", "replicate"])):
        n = draw(st.sampled_from([1, 1, 2, 3, 4]))
        if Mesh(**sizes, **{axis: n}).size <= most:
            sizes[axis] = n
    return Mesh(**sizes)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Mesh, tuple[int, ...], Rule]:
    """A mesh, and a tensor with a rule that fits it: dense, stacked experts, or one expert."""
    mesh = draw(meshes())
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 7, 8, 0]), max_size=3)))
    axis = st.none() if not shape else st.none() | st.integers(0, len(shape) - 1)
    layers = draw(st.integers(1, 6))
    layer = draw(st.none() | st.integers(0, layers - 1).map(lambda k: (k, layers)))
    tp = draw(axis)
    kind = draw(st.sampled_from(["dense", "stacked", "expert"]))
    if kind == "stacked" and shape:
        return mesh, shape, Rule(tp=tp, ep=draw(st.integers(0, len(shape) - 1)), layer=layer)
    if kind == "expert":
        count = draw(st.integers(1, 9))
        return (
            mesh,
            shape,
            Rule(tp=tp, expert=(draw(st.integers(0, count - 1)), count), layer=layer),
        )
    return mesh, shape, Rule(tp=tp, layer=layer)


def held(mesh: Mesh, shape: tuple[int, ...], rule: Rule) -> dict[int, Box]:
    boxes = {rank: mesh.box(shape, rule, rank) for rank in range(mesh.size)}
    return {rank: box for rank, box in boxes.items() if box is not None}


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))


@some
@given(cases())
def test_the_boxes_that_ranks_hold_cover_every_element_once(case) -> None:
    mesh, shape, rule = case
    times = np.zeros(shape, int)
    for box in {box for box in held(mesh, shape, rule).values() if box.size}:
        times[slices(box)] += 1
    assert (times == 1).all()


@some
@given(cases())
def test_boxes_are_those_that_some_rank_holds(case) -> None:
    mesh, shape, rule = case
    boxes = mesh.boxes(shape, rule)
    if not prod(shape):
        assert boxes == (Box.whole(shape),)
        return
    assert set(boxes) == {box for box in held(mesh, shape, rule).values() if box.size}
    assert list(boxes) == sorted(boxes, key=lambda box: box.offsets)


@some
@given(cases())
def test_holders_are_the_ranks_whose_box_it_is(case) -> None:
    mesh, shape, rule = case
    holders, boxes = mesh.holders(shape, rule), held(mesh, shape, rule)
    assert set(holders) == set(mesh.boxes(shape, rule))
    if prod(shape):
        for box, ranks in holders.items():
            assert ranks == [rank for rank, b in boxes.items() if b == box]
    else:
        assert holders == {Box.whole(shape): [*boxes]}


def test_holders_of_one_tensor_are_not_taken_for_those_of_another() -> None:
    mesh = Mesh.parse("tp=2,etp=2,ep=2,pp=2,fsdp=2")
    grids = None, Grid((8, 8), (4, 4), (1, 1)), Grid((8, 8), (8, 1), (1, 1))
    experts, layers = (None, *((k, 4) for k in range(4))), (None, *((k, 4) for k in range(4)))
    found = set()
    for tp, ep, expert, layer, grid in product((None, 0, 1), (None, 0), experts, layers, grids):
        rule = Rule(tp, None if expert else ep, expert, layer, grid)
        holders = mesh.holders((8, 8), rule)
        assert holders == replace(mesh).holders((8, 8), rule)
        found.add(id(holders))
    assert len(found) < 200, "tensors that the same ranks hold share what is known of them"


@some
@given(cases())
def test_a_box_is_what_the_place_cuts_from_the_layout(case) -> None:
    mesh, shape, rule = case
    for rank, box in held(mesh, shape, rule).items():
        at, cut = mesh.place(rank), Layout.of("w", shape)
        if rule.is_expert:
            cut = chunk(cut, mesh.ep, rule.ep)[at.ep] if rule.ep is not None else cut
            cut = chunk(cut, mesh.etp, rule.tp)[at.etp] if rule.tp is not None else cut
            cut = chunk(cut, mesh.expert_fsdp, 0)[at.expert_fsdp] if shape else cut
        else:
            cut = chunk(cut, mesh.tp, rule.tp)[at.tp] if rule.tp is not None else cut
            cut = chunk(cut, mesh.fsdp, 0)[at.fsdp] if shape else cut
        whole = np.arange(prod(shape)).reshape(shape)
        assert cut.shape == box.shape
        assert np.array_equal(ids(cut), whole[slices(box)])


@some
@given(cases())
def test_a_stage_of_the_pipeline_holds_its_own_layers_only(case) -> None:
    mesh, shape, rule = case
    stages = {mesh.place(rank).pp for rank in held(mesh, shape, rule)}
    if rule.layer is None:
        assert stages == set(range(mesh.pp))
    else:
        assert len(stages) == 1
    layers = 2 * mesh.pp
    found = [mesh.stage(Rule(layer=(k, layers))) for k in range(layers)]
    assert found == [k // 2 for k in range(layers)]


@some
@given(st.integers(1, 9), st.integers(1, 5))
def test_one_expert_lies_where_the_stack_of_all_experts_has_its_row(experts: int, ep: int) -> None:
    mesh = Mesh(ep=ep)
    for rank in range(ep):
        stack = mesh.box((experts, 4), Rule(ep=0), rank)
        assert stack is not None
        rows = range(stack.offsets[0], stack.offsets[0] + stack.shape[0])
        for expert in range(experts):
            alone = mesh.box((4,), Rule(expert=(expert, experts)), rank)
            assert (alone is not None) == (expert in rows)


@some
@given(meshes())
def test_every_rank_has_its_own_place(mesh: Mesh) -> None:
    places = [mesh.place(rank) for rank in range(mesh.size)]
    axes = ("tp", "cp", "fsdp", "replicate", "pp")
    assert len({tuple(getattr(p, a) for a in axes) for p in places}) == mesh.size
    for place in places:
        assert all(getattr(place, a) < getattr(mesh, a) for a in ("tp", "etp", "ep", "pp", "fsdp"))
        assert place.expert_fsdp < mesh.expert_fsdp
    with pytest.raises(UsageError, match="outside a mesh"):
        mesh.place(mesh.size)


@some
@given(st.integers(0, 40), st.integers(1, 9))
def test_a_share_is_what_torch_chunk_gives(n: int, parts: int) -> None:
    import torch

    chunks = [list(c.tolist()) for c in torch.arange(n).chunk(parts)] if n else []
    chunks += [[]] * (parts - len(chunks))
    found = [share(n, parts, k) for k in range(parts)]
    assert [list(range(lo, lo + count)) for lo, count in found] == chunks


def test_replicas_hold_the_same_boxes() -> None:
    mesh = Mesh(fsdp=3, replicate=2)
    holders = mesh.holders((7, 4), Rule())
    assert [len(ranks) for ranks in holders.values()] == [2, 2, 2]


def test_tensor_parallel_ranks_are_neighbours() -> None:
    mesh = Mesh(tp=2, fsdp=3)
    assert [mesh.place(rank).tp for rank in range(6)] == [0, 1, 0, 1, 0, 1]
    assert [mesh.place(rank).fsdp for rank in range(6)] == [0, 0, 1, 1, 2, 2]


@some
@given(meshes())
def test_a_mesh_is_parsed_from_what_it_prints(mesh: Mesh) -> None:
    text = str(mesh)
    assert Mesh.parse("" if text == "1 rank" else text) == mesh
    assert Mesh.parse({"tp": mesh.tp, "ep": mesh.ep}) == Mesh(tp=mesh.tp, ep=mesh.ep)
    assert Mesh.parse(mesh) is mesh
    assert Mesh.parse(None) == Mesh()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dp=2", "unknown mesh axis 'dp'"),
        ("tp=2,tp=2", "'tp' is given twice"),
        ("tp", "at least 1"),
        ("tp=", "at least 1"),
        ("tp=0", "at least 1"),
        ("tp=-1", "at least 1"),
        ("tp=two", "at least 1"),
        ("tp=1.5", "at least 1"),
        ("tp=" + "9" * 5000, "at most 1,048,576"),
        ("tp=1048577", "at most 1,048,576"),
        ("tp=1024,fsdp=1024,pp=2", "2,097,152 ranks, at most 1,048,576"),
        ({"tp": 0}, "at least 1"),
        ({"rank": 2}, "unknown mesh axis 'rank'"),
        ({"tp": True}, "at least 1"),
        ([2], r"a mesh is text or a mapping, found \[2\]"),
        (2, "a mesh is text or a mapping, found 2"),
    ],
)
def test_a_mesh_that_makes_no_sense_is_refused(text, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Mesh.parse(text)

"""The cost of a target is counted once for all that are alike, wherever in its chunk each begins."""

from __future__ import annotations

import pytest

from intarsia.dtypes import BY_NAME
from intarsia.layout import Layout, Loop, Piece, run
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored, Target
from intarsia.planning.planner import Cost, Costs
from intarsia.planning.proof import prover_of
from intarsia.planning.together import partners

BF16 = BY_NAME["BF16"]


def layer(name: str, *pieces: Piece, size: int) -> Stored:
    layout = Layout((size,), pieces)
    return Stored(name, BF16, layout, (Chunk(Box.whole((size,)), name, 0, 2 * size),), key=name)


def counted(*held: Stored, of: list[Layout]) -> list[Cost]:
    """The cost of each group of targets, and that of each when nothing was counted before it."""
    names = {p.tensor: p.size for s in held for p in s.layout.pieces}
    logical = {name: Logical(name, (n,), BF16) for name, n in names.items()}
    src = Manifest("hf", "/", {s.name: s for s in held}, logical, {})
    boxes = {x.shape: (Box.whole(x.shape),) for x in of}
    proofs = [
        prover_of(src).prove(Target(f"{k}", BF16, x, boxes[x.shape])) for k, x in enumerate(of)
    ]
    groups, costs = partners(proofs), Costs(1 << 20)
    found = [costs.of(group) for group in groups]
    assert found == [Costs(1 << 20).of(group) for group in groups]
    return found


def test_experts_of_one_tensor_cost_the_same_and_are_counted_once(monkeypatch) -> None:
    calls: list[int] = []
    count = Costs._count
    monkeypatch.setattr(Costs, "_count", lambda s, g: (calls.append(len(g)), count(s, g))[1])
    experts = [run(f"{k}", 100 * k, 0, 100) for k in range(3)]
    found = counted(
        layer("all", *experts, size=300), of=[Layout.of(f"{k}", (100,)) for k in range(3)]
    )
    assert found == [Cost(1, 200, 200)] * 3
    assert len(calls) == 1 + 3, "once, and once for each that was counted by itself"


@pytest.mark.parametrize("gap", [0, 2])
def test_what_lies_between_two_parts_is_read_where_it_lies(gap: int) -> None:
    near = layer("near", run("a", 0, 0, 100), run("b", 100, 0, 100), size=202)
    far = layer("far", run("x", 0, 0, 100), run("y", 100 + gap, 0, 100), size=202)
    both = [Layout((200,), (run(p, 0, 0, 100), run(q, 100, 0, 100))) for p, q in ("ab", "xy")]
    assert [cost.read_bytes for cost in counted(near, far, of=both)] == [400, 400 + 2 * gap]


@pytest.mark.parametrize("second", [1, 2])
def test_tensors_in_turn_are_read_from_the_first_to_the_last(second: int) -> None:
    def turn(name: str, at: int) -> Piece:
        return Piece(name, at, 0, (Loop(50, 3, 1),))

    held = [
        layer("p", turn("a", 0), turn("b", 1), turn("c", 2), size=150),
        layer("q", turn("x", 0), turn("y", 1), turn("z", 2), size=150),
    ]
    wanted = [Layout.of(name, (50,)) for name in ("a", "b", "x", "xyz"[second])]
    assert [cost.read_bytes for cost in counted(*held, of=wanted)] == [298, 296 + 2 * second]

"""The planner proves what is whole, and names what is missing, doubled or unused."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.dtypes import BY_NAME
from intarsia.errors import CoverageError
from intarsia.layout import Layout, concat
from intarsia.mesh import Box, Mesh, Rule
from intarsia.planning.inventory import LeftOut, Reason
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored, Target
from intarsia.planning.plan import Plan
from intarsia.planning.planner import make_plan

BF16 = BY_NAME["BF16"]
SHAPE = (6, 4)


def chunked(boxes: Sequence[Box]) -> tuple[Chunk, ...]:
    """Chunks one after another in one file."""
    out, at = [], 0
    for box in boxes:
        out.append(Chunk(box, "file", at, box.size * 2))
        at += box.size * 2
    return tuple(out)


def stored(name: str, layout: Layout, boxes: Sequence[Box] | None = None) -> Stored:
    return Stored(name, BF16, layout, chunked(boxes or [Box.whole(layout.shape)]), key=name)


def manifest(*held: Stored, shape: tuple[int, ...] = SHAPE) -> Manifest:
    names = dict.fromkeys(n for s in held for n in (s.layout.tensors or (s.name,)))
    logical = {n: Logical(n, shape, BF16) for n in names}
    return Manifest("hf", "/here", {s.name: s for s in held}, logical, {"file": 1})


def target(name: str, layout: Layout, mesh: Mesh = Mesh(), rule: Rule = Rule()) -> Target:
    return Target(name, BF16, layout, mesh.boxes(layout.shape, rule), rule)


def plan(src: Manifest, targets: Sequence[Target], **options) -> Plan:
    return make_plan(src, targets, to="dcp", mesh=Mesh(), peak_memory_bytes=1, **options)


W = Layout.of("w", SHAPE)
GATE, UP = Layout.of("gate", SHAPE), Layout.of("up", SHAPE)


@pytest.mark.parametrize("text", ["", "tp=2", "fsdp=4", "tp=3,fsdp=2", "tp=5"])
def test_a_whole_checkpoint_is_proven_on_any_mesh(text: str) -> None:
    mesh = Mesh.parse(text)
    found = plan(manifest(stored("w", W)), [target("w", W, mesh, Rule(tp=1))])
    assert found.proven
    assert found.write_bytes == found.needed_bytes == 48
    assert found.read_bytes >= 48
    found.check()


def test_fused_and_unfused_tensors_are_proven_both_ways() -> None:
    apart = manifest(stored("gate", GATE), stored("up", UP))
    fused = manifest(stored("fc1", concat([GATE, UP])))
    together = [target("fc1", concat([GATE, UP]), Mesh(tp=2), Rule(tp=0))]
    assert plan(apart, together).proven
    assert plan(fused, [target("gate", GATE), target("up", UP)]).proven


def test_missing_elements_are_counted_and_the_first_is_named() -> None:
    short = manifest(stored("gate", GATE), stored("up", UP.narrow(0, 0, 4)))
    found = plan(short, [target("fc1", concat([GATE, UP]))])
    assert not found.proven
    (problem,) = found.problems
    assert "8 of 24 elements of `up` have no source" in problem
    assert "first missing: up[4, 0]" in problem
    with pytest.raises(CoverageError, match="8 of 24") as raised:
        found.check()
    assert raised.value.exit_status == 1
    assert "nothing was written" in str(raised.value)


def test_a_tensor_that_no_source_holds_is_missing_whole() -> None:
    found = plan(manifest(stored("gate", GATE)), [target("gate", GATE), target("up", UP)])
    assert not found.proven
    assert "24 of 24 elements of `up` have no source" in found.problems[0]


def test_every_missing_tensor_is_named() -> None:
    targets = [target(f"w{k}", Layout.of(f"w{k}", (k + 1,))) for k in range(20)]
    found = plan(manifest(stored("w0", Layout.of("w0", (1,))), shape=(1,)), targets)
    assert [gap.tensor for gap in found.gaps] == [f"w{k}" for k in range(1, 20)]
    assert sum(gap.elements for gap in found.gaps) == sum(range(2, 21))
    with pytest.raises(CoverageError, match="and 11 more"):
        found.check()


def test_elements_with_two_sources_are_a_fault() -> None:
    twice = manifest(stored("w", W), stored("again", W))
    found = plan(twice, [target("w", W)])
    assert not found.proven
    assert "24 elements of `w` have more than one source" in found.problems[0]
    assert "first: w[0, 0]; held by w, again" in found.problems[0]


def test_source_elements_that_nothing_takes_are_counted_in_however_many_ranges_they_lie() -> None:
    shape = 40, 3
    tall = Layout.of("w", shape)
    taken = target("w", tall.narrow(1, 0, 2))
    assert (
        "40 elements of `w` are not used"
        in plan(manifest(stored("w", tall), shape=shape), [taken]).problems
    )


def test_source_elements_that_nothing_takes_are_named() -> None:
    src = manifest(stored("w", W), stored("v", Layout.of("v", SHAPE)))
    found = plan(src, [target("w", W.narrow(0, 1, 6))])
    assert not found.proven
    assert "4 elements of `w` are not used" in found.problems
    assert "24 elements of `v` are not used" in found.problems
    with pytest.raises(CoverageError) as refused:
        found.check()
    assert refused.value.hint is not None
    assert "has no place for them" in refused.value.hint


def test_what_is_left_of_a_tensor_is_counted_by_how_it_is_taken_not_by_where() -> None:
    v = Layout.of("v", SHAPE)
    found = plan(
        manifest(stored("w", W), stored("v", v)),
        [target("w", W.permute(1, 0)), target("v", v.narrow(1, 0, 2))],
    )
    assert [gap.elements for gap in found.gaps] == [12]


def test_what_is_dropped_on_purpose_is_listed_with_its_reason() -> None:
    src = manifest(stored("w", W), stored("v", Layout.of("v", SHAPE)))
    found = plan(src, [target("w", W)], drop={"v": Reason("as asked", lost=True)})
    assert found.proven
    assert found.left_out == (LeftOut("v", 24, "as asked", lost=True),)


def test_overlapping_chunks_are_a_fault() -> None:
    boxes = [Box((0, 0), (4, 4)), Box((3, 0), (3, 4))]
    found = plan(manifest(stored("w", W, boxes)), [target("w", W)])
    assert not found.proven
    assert "the chunks of `w` do not tile it" in found.problems[0]
    assert "overlap" in found.problems[0]


def test_a_missing_chunk_is_a_fault() -> None:
    boxes = [Box((0, 0), (3, 4)), Box((4, 0), (2, 4))]
    found = plan(manifest(stored("w", W, boxes)), [target("w", W)])
    assert not found.proven
    assert "4 of 24 elements are in none of 2 parts; first missing [3, 0]" in found.problems[0]


def test_one_chunk_that_lies_elsewhere_is_a_fault() -> None:
    found = plan(manifest(stored("w", W, [Box((1, 0), (6, 4))])), [target("w", W)])
    assert not found.proven


def test_parts_of_a_destination_that_do_not_tile_it_are_a_fault() -> None:
    parts = (Box((0, 0), (3, 4)),)
    found = plan(manifest(stored("w", W)), [Target("w", BF16, W, parts)])
    assert not found.proven
    assert "the parts of `w` do not tile it" in found.problems[0]


def test_a_fault_in_one_of_many_equal_tensors_is_not_hidden_by_the_others() -> None:
    """Proofs are shared between tensors of one template; only that of the damaged one fails."""
    halves = [Box((0, 0), (3, 4)), Box((3, 0), (3, 4))]
    held = [stored(f"w{k}", Layout.of(f"w{k}", SHAPE), halves) for k in range(9)]
    held[5] = stored("w5", Layout.of("w5", SHAPE), halves[:1])
    targets = [target(f"w{k}", Layout.of(f"w{k}", SHAPE), Mesh(tp=2), Rule(tp=1)) for k in range(9)]
    found = plan(manifest(*held), targets)
    assert [gap.tensor for gap in found.gaps] == ["w5"]


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)), st.integers(1, 3))
def test_a_plan_is_proven_where_sources_hold_each_row_once(first, second, tp: int) -> None:
    """Two stored tensors hold some rows of `w` each; the plan wants all of them."""
    held = []
    for name, rows in (("a", first), ("b", second)):
        if rows:
            layout = concat([W.narrow(0, r, r + 1) for r in sorted(rows)])
            held.append(stored(name, layout))
    found = plan(manifest(*held), [target("w", W, Mesh(tp=tp), Rule(tp=1))])
    assert found.proven == (first | second == set(range(6)) and not first & second)
    missing = 4 * (6 - len(first | second))
    if missing:
        assert f"{missing} of 24 elements of `w` have no source" in found.problems[0]


def test_a_plan_prints_as_a_table_and_as_json() -> None:
    src = manifest(stored("w", W), stored("v", Layout.of("v", SHAPE)))
    found = plan(src, [target("w", W)], drop={"v": Reason("as asked")}, notes=["a remark"])
    text = str(found)
    assert "every element arrives exactly once" in text
    assert "left out v (24): as asked" in text
    assert "a remark" in text
    document = json.loads(json.dumps(found.as_json()))
    wanted = "proven tensors copies read_bytes write_bytes peak_memory_bytes read_amplification"
    assert {*wanted.split(), "problems"} <= document.keys()
    assert document["proven"] is True
    assert document["left_out"] == [LeftOut("v", 24, "as asked").as_json()]
    broken = plan(manifest(stored("gate", GATE)), [target("gate", GATE), target("up", UP)])
    assert "NOT PROVEN" in str(broken)
    assert broken.as_json()["problems"] == list(broken.problems)

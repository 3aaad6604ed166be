"""A proof is made by the prover alone, and only where each element has exactly one source."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from intarsia.dtypes import BY_NAME
from intarsia.errors import CoverageError
from intarsia.layout import Layout, Loop, Piece, concat, padding, run
from intarsia.mesh import Box
from intarsia.planning.chunks import Chunks, boxes_of, places_of
from intarsia.planning.made_when_asked import MadeWhenAsked
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored, Target
from intarsia.planning.proof import (
    AlikeTensors,
    Proofs,
    Proven,
    check_tiling,
    prover_of,
)
from intarsia.planning.whole_tensor import WholeTensor

F32 = BY_NAME["F32"]
SHAPE = (6, 4)
W, V = Layout.of("w", SHAPE), Layout.of("v", SHAPE)


def stored(name: str, layout: Layout, *boxes: Box, short: int = 0) -> Stored:
    chunks = [
        Chunk(box, f"{name}-{k}", 0, box.size * 4 - short)
        for k, box in enumerate(boxes or [Box.whole(layout.shape)])
    ]
    return Stored(name, F32, layout, tuple(chunks), key=name)


def manifest(*held: Stored) -> Manifest:
    logical = {n: Logical(n, SHAPE, F32) for s in held for n in s.layout.tensors}
    return Manifest("dcp", "/here", {s.name: s for s in held}, logical, {})


def in_columns(src: Manifest) -> Manifest:
    """The same with the places of all chunks in columns."""
    held = [s.chunks for s in src.stored.values()]
    firsts, places = [0, *accumulate(map(len, held))], places_of(held)
    columns = (Chunks(boxes_of(x), places, k) for x, k in zip(held, firsts, strict=False))
    pairs = zip(src.stored.items(), columns, strict=True)
    return replace(src, stored={n: replace(s, chunks=x) for (n, s), x in pairs})


def target(layout: Layout, *boxes: Box) -> Target:
    return Target("mine", F32, layout, boxes or (Box.whole(layout.shape),))


def rows(lo: int, hi: int) -> Box:
    return Box((lo, 0), (hi - lo, 4))


def test_nothing_else_makes_a_proof() -> None:
    src = manifest(stored("w", W))
    with pytest.raises(TypeError, match="only `Prover`"):
        Proven(src, target(W), (), object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="only `Prover`"):
        Proofs(prover_of(src), {}, {}, {}, object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="only `Prover`"):
        AlikeTensors(prover_of(src).tensor("w"), [0], [], object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        replace(prover_of(src).tensor("w"), sources=())  # type: ignore[type-var]


LAYOUTS = {
    "as stored": W,
    "columns": W.narrow(1, 1, 3),
    "transposed": W.permute(1, 0),
    "padded": concat([W, padding(2, 4)]),
    "two tensors": concat([V, W]),
    "one element many times": W.narrow(0, 2, 3).expand(0, 5),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_layout_over_whole_tensors_is_proven(layout: Layout) -> None:
    src = manifest(stored("w", W, rows(0, 2), rows(2, 6)), stored("v", V))
    proven = prover_of(src).prove(target(layout))
    whole = Box.whole(layout.shape)
    assert sum(copy.piece.size for copy in proven.copies(whole)) == layout.mapped
    assert proven.stretch(0, layout.size) == proven.copies(whole)


TWICE = Layout(SHAPE, (run("w", 0, 0, 20), run("w", 20, 0, 4)))
FIRST = Layout((7, 4), (run("w", 0, 0, 24), run("w", 24, 3, 1)))
PLACE = Layout(SHAPE, (run("w", 0, 0, 13), run("w", 12, 13, 11)))
BEYOND = Layout(SHAPE, (run("w", 0, 0, 20), run("w", 20, 24, 4)))
OUTSIDE = Layout(SHAPE, (run("w", 4, 0, 24),))
STILL = Layout(SHAPE, (Piece("w", 0, 0, (Loop(6, 4, 4), Loop(4, 1, 0))),))
FLAT = Layout((24,), W.pieces)
LATER = Layout(SHAPE, (run("w", 0, 1, 24),))
LIES = {
    "a chunk of other axes": (
        stored("w", FLAT, rows(0, 6)),
        r"\[0:6, 0:4\] has 2 axes, the tensor has 1",
    ),
    "chunks overlap": (stored("w", W, rows(0, 4), rows(3, 5)), r"\[0:4, 0:4\] and \[3:5, 0:4\]"),
    "chunks leave a hole": (stored("w", W, rows(0, 2), rows(3, 6)), r"first missing \[2, 0\]"),
    "a chunk sticks out": (stored("w", W, rows(0, 4), rows(4, 7)), r"part \[4:7, 0:4\] leaves"),
    "the same chunk twice": (stored("w", W, rows(0, 3), rows(0, 3)), "overlap"),
    "one chunk elsewhere": (stored("w", W, rows(1, 7)), r"part \[1:7, 0:4\] leaves"),
    "too few bytes": (stored("w", W, short=1), "needs 96 bytes, 95 are stored"),
    "one chunk, of too few rows": (
        stored("w", W, rows(0, 5), short=-16),
        r"first missing \[5, 0\]",
    ),
    "all one element later": (stored("w", LATER), "element 24 of `w` is stored"),
    "no chunk": (replace(stored("w", W), chunks=()), "24 of 24 elements are in none of 0"),
    "an element at two places": (stored("w", TWICE), r"4 of 24 .* first missing: w\[5, 0\]"),
    "an element again in padding": (stored("w", FIRST), r"more than one source; first: w\[0, 3\]"),
    "two elements at one place": (stored("w", PLACE), "1 places of `w` belong to two elements"),
    "an element that is not there": (stored("w", BEYOND), "element 27 of `w` is stored"),
    "a place that is not there": (stored("w", OUTSIDE), "4 places of `w` .* or are outside of it"),
    "one column for all": (stored("w", STILL), r"18 of 24 .* first missing: w\[0, 1\]"),
}


@pytest.mark.parametrize(("lie", "text"), LIES.values(), ids=LIES)
def test_a_stored_tensor_that_lies_proves_nothing(lie: Stored, text: str) -> None:
    """Whatever part is asked for, in whatever form, the words are the same."""
    wanted = [target(W), target(W.narrow(0, 0, 1)), target(W.permute(1, 0)), target(padding(2))]
    for src in (manifest(lie), in_columns(manifest(lie))):
        for each in wanted[:3]:
            with pytest.raises(CoverageError, match=text):
                prover_of(src).prove(each)
        for ask in (lambda p: p.tensor("w"), lambda p: p.stored(lie), lambda p: p.all()):
            with pytest.raises(CoverageError, match=text):
                ask(prover_of(src))
        prover_of(src).prove(wanted[3])


@pytest.mark.parametrize("lie", ["chunks overlap", "too few bytes", "a chunk sticks out", ""])
def test_a_stored_tensor_of_which_no_logical_one_is_known_proves_nothing(lie: str) -> None:
    held = LIES[lie][0] if lie else stored("w", W)
    src = replace(manifest(held, stored("v", V)), logical={"v": Logical("v", SHAPE, F32)})
    for layout in (W, W.narrow(0, 0, 1), W.permute(1, 0), concat([V, W])):
        lost = f"{layout.size if 'v' not in layout.tensors else 24} of {layout.size} elements of"
        with pytest.raises(CoverageError, match=rf"{lost} `mine` have no source; first missing: w"):
            prover_of(src).prove(target(layout))
    both = replace(manifest(stored("both", concat([V, W]))), logical={})
    with pytest.raises(CoverageError, match="24 of 24 elements of `mine` have no source"):
        prover_of(both).prove(target(W))


KINDS = {
    "chunks overlap": "chunks-overlap", "chunks leave a hole": "elements-missing", "a chunk sticks out": "chunk-mismatch",
    "too few bytes": "chunk-mismatch", "an element again in padding": "chunks-overlap", "an element at two places": "elements-missing",
}  # fmt: skip


@pytest.mark.parametrize(("lie", "kind"), KINDS.items())
def test_each_lie_is_of_a_kind(lie: str, kind: str) -> None:
    found = prover_of(manifest(LIES[lie][0])).attempt(target(W))
    assert isinstance(found, list)
    assert found[0].kind == kind


@pytest.mark.parametrize("again", [W, W.narrow(0, 5, 6), concat([V, W.narrow(1, 3, 4).reshape(1, 6).narrow(1, 0, 4)])])  # fmt: skip
def test_two_stored_tensors_that_hold_one_element_prove_nothing(again: Layout) -> None:
    src = manifest(stored("w", W), stored("again", again))
    for each in (src, in_columns(src)):
        for ask in (lambda p: p.prove(target(W.narrow(0, 0, 1))), lambda p: p.tensor("w")):
            with pytest.raises(CoverageError, match=r"`w` have more than one .*held by w, again"):
                ask(prover_of(each))


def test_what_is_wrong_with_any_of_many_tensors_is_told_of_all() -> None:
    few = [
        replace(stored(n, Layout.of(n, SHAPE), short=k % 2), key=n) for k, n in enumerate("abcd")
    ]
    src = manifest(*few)
    with pytest.raises(
        CoverageError, match=r"2 faults, 48 elements(?s:.*)of `b` needs(?s:.*)of `d` needs"
    ):
        prover_of(src).tensors(src.logical)
    assert [*prover_of(src).tensors("ca")] == ["c", "a"]


RUN = WholeTensor("w", F32, SHAPE, 0, 96, "a")


def held_as(stored: dict[str, Any], logical: dict[str, Any]) -> Manifest:
    """A manifest of what headers say."""
    made = MadeWhenAsked(stored, lambda s: s if isinstance(s, Stored) else s.stored())
    named = MadeWhenAsked(logical, lambda x: x if isinstance(x, Logical) else x.logical())
    return Manifest("hf", "/here", made, named, {})


def test_a_tensor_that_is_a_run_of_a_file_is_proven_without_being_made() -> None:
    other = RUN._replace(name="v", file="b")
    src = held_as({"w": RUN, "v": other}, {"w": RUN, "v": other})
    proofs = prover_of(src).tensors("vw")
    assert proofs.whole == {"v": other, "w": RUN}
    assert [*proofs] == ["v", "w"]
    assert len(proofs) == 2
    assert proofs["w"] is prover_of(src).tensor("w")
    assert proofs["w"].is_one_chunk


@pytest.mark.parametrize(
    ("layout", "tensors"),
    [
        (W, "w"),
        (W.narrow(0, 2, 5), "w"),
        (concat([V, W.narrow(0, 1, 2), V]), "vwv"),
        (TWICE, "ww"),
        (W.permute(1, 0), ""),
        (concat([W, padding(1, 4)]), ""),
        (concat([padding(1, 4), W]), ""),
        (Layout((2,), ()), ""),
    ],
)
def test_a_target_of_runs_that_fill_it_in_order_is_proven_with_them(
    layout: Layout, tensors: str
) -> None:
    both = {"w": RUN, "v": RUN._replace(name="v", file="b")}
    proven = prover_of(held_as(both, both)).prove(target(layout))
    assert "".join(x.name for x in proven.runs) == tensors
    copies = sum(copy.piece.size for copy in proven.copies(Box.whole(layout.shape)))
    assert copies == layout.mapped


@pytest.mark.parametrize("layout", [PLACE, BEYOND, OUTSIDE, LATER])
def test_a_target_of_runs_that_overlap_or_lie_outside_is_refused(layout: Layout) -> None:
    with pytest.raises(CoverageError):
        prover_of(held_as({"w": RUN}, {"w": RUN})).prove(target(layout))


def test_a_target_of_runs_that_is_written_in_part_is_refused() -> None:
    with pytest.raises(CoverageError, match=r"first missing \[2, 0\]"):
        prover_of(held_as({"w": RUN}, {"w": RUN})).prove(target(W, rows(0, 2), rows(3, 6)))


UNLIKE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "shorter": ({"w": (short := RUN._replace(length_bytes=92))}, {"w": short}),
    "another type": ({"w": RUN}, {"w": Logical("w", SHAPE, BY_NAME["BF16"])}),
    "held twice": ({"w": RUN, "again": stored("again", W.narrow(0, 0, 1))}, {"w": RUN}),
    "named otherwise": ({"again": RUN, "w": (v := RUN._replace(file="b"))}, {"w": v}),
}


@pytest.mark.parametrize(("held", "logical"), UNLIKE.values(), ids=UNLIKE)
def test_what_is_not_at_a_glance_a_run_of_a_file_is_proven_by_its_links(
    held: dict[str, Any], logical: dict[str, Any]
) -> None:
    src = held_as(held, logical)
    if len(held) > 1 or held["w"] is not RUN:
        with pytest.raises(CoverageError, match=r"more than one source|needs 96 bytes"):
            prover_of(src).tensors("w")
    else:
        assert not prover_of(src).tensors("w").whole


OTHERWISE = {
    "two chunks": stored("w", W, rows(0, 2), rows(2, 6)),
    "other axes": stored("w", FLAT),
    "padded": stored("w", concat([W, padding(1, 4)])),
    "columns first": stored("w", W.permute(1, 0).reshape(6, 4)),
    "two pieces": stored("w", Layout(SHAPE, (run("w", 0, 0, 20), run("w", 20, 20, 4)))),
    "halves changed round": stored("w", Layout(SHAPE, (run("w", 0, 12, 12), run("w", 12, 0, 12)))),
}


@pytest.mark.parametrize("held", OTHERWISE.values(), ids=OTHERWISE)
def test_only_a_tensor_that_one_chunk_holds_as_it_is_is_called_so(held: Stored) -> None:
    seen = prover_of(manifest(stored("w", W))).tensor("w")
    assert seen.is_one_chunk
    found = prover_of(manifest(held)).tensor("w")
    assert not found.is_one_chunk
    assert found.target == seen.target == Target("w", F32, W, (rows(0, 6),))
    assert sum(copy.piece.size for copy in found.copies(rows(0, 6))) == 24
    assert seen.stretch(0, 24) == seen.copies(rows(0, 6))
    assert not prover_of(manifest(stored("w", W))).prove(target(W.narrow(0, 0, 1))).is_one_chunk


def test_what_is_asked_for_must_be_there_and_each_place_be_for_one_element() -> None:
    prover = prover_of(manifest(stored("w", W)))
    with pytest.raises(CoverageError, match=r": 4 of 24 elements of `mine`.*w\[24\]"):
        prover.prove(target(BEYOND))
    with pytest.raises(CoverageError, match=r": 1 of 3 elements of `mine`.*w\[40\]"):
        prover.prove(target(Layout((3,), (Piece("w", 0, 0, (Loop(3, 1, 20),)),))))
    with pytest.raises(CoverageError, match="24 of 24 elements of `mine` have no source"):
        prover.prove(target(V))
    with pytest.raises(CoverageError, match="1 places of `mine`"):
        prover.prove(target(PLACE))
    with pytest.raises(CoverageError, match="the parts of `mine` do not tile it"):
        prover.prove(target(W, rows(0, 4), rows(3, 5)))


def test_a_scalar_is_one_chunk_and_an_empty_chunk_is_harmless() -> None:
    scalar, x = Box((), ()), Layout.of("x", ())
    empty = manifest(stored("w", W, rows(0, 6), rows(6, 6), rows(2, 2)))
    assert prover_of(empty).tensor("w").sources
    for boxes, text in (([scalar, scalar], "overlap"), ([], r"first missing \[\]")):
        held = replace(stored("x", x, *boxes), chunks=stored("x", x, *boxes).chunks[: len(boxes)])
        src = replace(manifest(held), logical={"x": Logical("x", (), F32)})
        with pytest.raises(CoverageError, match=text):
            prover_of(src).tensor("x")


def test_a_proof_is_made_once_for_a_manifest_and_anew_for_another() -> None:
    src = manifest(stored("w", W))
    assert prover_of(src) is prover_of(src)
    assert prover_of(src).tensor("w") is prover_of(src).tensor("w")
    other = replace(src, stored={"w": stored("w", W, rows(0, 5))})
    with pytest.raises(CoverageError):
        prover_of(other).tensor("w")


def test_parts_that_are_saved_tile_their_tensor() -> None:
    check_tiling("w", SHAPE, (rows(0, 2), rows(2, 6)))
    for wrong in ((rows(0, 4), rows(3, 5)), (rows(0, 2),), ()):
        with pytest.raises(CoverageError, match="what ranks hold of `w` does not tile it"):
            check_tiling("w", SHAPE, wrong)

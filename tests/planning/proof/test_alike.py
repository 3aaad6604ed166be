"""A proof is inherited by targets that differ by name alone, and by no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.dtypes import BY_NAME
from intarsia.errors import CoverageError
from intarsia.family import table_for
from intarsia.format.dcp.metadata import TensorRecord
from intarsia.layout import Layout, Loop, Piece, concat, padding, run
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored, Target
from intarsia.planning.proof import Proven, prover_of
from intarsia.planning.proof.links import Links
from intarsia.value import shifted
from tests.checkpoints import leftovers, random_tensor, write_hf
from tests.family.configs import DENSE, of
from tests.planning.lies import LIES, Lie, rewrite
from tests.value.test_a_value_of_ones_own import BlockScaled

F32, F64, BF16 = BY_NAME["F32"], BY_NAME["F64"], BY_NAME["BF16"]
SHAPE = (6, 4)
WHOLE = (Box.whole(SHAPE),)
ALL, MORE = (Box.whole((18, 4)),), (Box.whole((7, 4)),)
"""One value for all targets of a shape, as the boxes of a mesh are."""
EXPERTS, LAYERS, LAST = 3, 4, 3
Change = Callable[[Manifest, Target], tuple[Manifest, Target]]


def name_of(layer: int, expert: int) -> str:
    return f"layers.{layer}.experts.{expert}"


def fused(layer: int) -> str:
    return f"layers.{layer}.experts"


def experts(layer: int) -> list[Layout]:
    return [Layout.of(name_of(layer, e), SHAPE) for e in range(EXPERTS)]


def stored(layer: int, layout: Layout | None = None, *boxes: Box, short: int = 0) -> Stored:
    """The experts of a layer in one tensor, in two chunks as a rule."""
    layout = layout or concat(experts(layer))
    chunks = [
        Chunk(box, f"{layer}-{k}", 0, box.size * 4 - short)
        for k, box in enumerate(boxes or (rows(0, 9), rows(9, 18)))
    ]
    return Stored(fused(layer), F32, layout, tuple(chunks), key=fused(layer))


def rows(lo: int, hi: int) -> Box:
    return Box((lo, 0), (hi - lo, 4))


def model() -> Manifest:
    held = {fused(layer): stored(layer) for layer in range(LAYERS)}
    names = [name_of(layer, e) for layer in range(LAYERS) for e in range(EXPERTS)]
    return Manifest("dcp", "/here", held, {n: Logical(n, SHAPE, F32) for n in names}, {})


def target(layer: int, expert: int) -> Target:
    return Target(f"{layer}.{expert}", F32, experts(layer)[expert], WHOLE)


def all_of(src: Manifest, layer: int) -> Target:
    """All experts of a layer as they are stored."""
    return Target(f"{layer}", F32, src.stored[fused(layer)].layout, ALL)


PADDED = [
    Target(f"{layer}.p", F32, concat([experts(layer)[1], padding(1, 4)]), MORE)
    for layer in range(LAST)
]
TARGETS = [target(layer, e) for layer in range(LAYERS) for e in range(EXPERTS)]


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets that were proven by looking at them."""
    found: list[str] = []
    faults = Links.target_faults
    monkeypatch.setattr(
        Links, "target_faults", lambda self, t, s: (found.append(t.name), faults(self, t, s))[1]
    )
    return found


def copies(proven: Proven) -> list[tuple[str, Chunk, Piece]]:
    found = proven.copies(Box.whole(proven.target.shape))
    return [(c.stored.name, c.chunk, c.piece) for c in found]


def test_layers_that_differ_by_name_are_proven_once_and_each_is_copied_from_its_own_chunks(
    looked_at,
) -> None:
    prover = prover_of(model())
    for each in TARGETS:
        assert copies(prover.prove(each)) == copies(prover_of(model()).prove(each))
        looked_at.remove(each.name)
    assert looked_at == [f"0.{e}" for e in range(EXPERTS)]


def in_last(change: Callable[[Stored], Stored]) -> Change:
    def changed(src: Manifest, wanted: Target) -> tuple[Manifest, Target]:
        return replace(src, stored={**src.stored, fused(LAST): change(stored(LAST))}), wanted

    return changed


def held_as(layout: Layout, *boxes: Box) -> Change:
    return in_last(lambda s: stored(LAST, layout, *boxes))


def wanted_as(**changes: object) -> Change:
    return lambda src, wanted: (src, replace(wanted, **changes))


def shapes(expert: int, shape: tuple[int, ...]) -> Change:
    name = name_of(LAST, expert)
    return lambda src, t: (
        replace(src, logical={**src.logical, name: Logical(name, shape, F32)}), t,
    )  # fmt: skip


A, B, C = (x.pieces[0] for x in experts(LAST))
MIDDLE = experts(LAST)[1]
TALL = (18, 4)


def pieces(*given: Piece) -> Layout:
    return Layout(TALL, given)


FIRST, THIRD = replace(A, at=0), replace(C, at=48)
SECOND = replace(B, at=24)
DAMAGES: dict[str, Change] = {
    "a chunk is missing": in_last(lambda s: replace(s, chunks=s.chunks[:1])),
    "a box is shifted": held_as(concat(experts(LAST)), rows(0, 9), rows(8, 17)),
    "a chunk is too short": in_last(lambda s: stored(LAST, short=1)),
    "another element type, of more bytes": in_last(lambda s: replace(s, dtype=F64)),
    "a part lies at another's place": held_as(pieces(FIRST, replace(B, at=23), THIRD)),
    "other elements are stored": held_as(pieces(FIRST, replace(SECOND, to=1), THIRD)),
    "fewer elements are stored": held_as(pieces(FIRST, run(B.tensor, 24, 0, 23), THIRD)),
    "one row again and again": held_as(
        pieces(FIRST, Piece(B.tensor, 24, 0, (Loop(6, 4, 0), Loop(4, 1, 1))), THIRD)
    ),
    "another's elements are stored": held_as(pieces(FIRST, replace(A, at=24), THIRD)),
    "the tensor is longer than what is stored": shapes(1, (7, 4)),
    "the tensor is shorter than what is stored": shapes(1, (5, 4)),
    "the tensor is unknown": lambda src, t: (
        replace(src, logical={n: x for n, x in src.logical.items() if n != B.tensor}),
        replace(t, layout=Layout(SHAPE, (replace(B, to=1),))),
    ),
    "something else holds it, too": lambda src, t: (
        replace(src, stored={**src.stored, "again": replace(stored(LAST, MIDDLE, *WHOLE), name="again")}), t,
    ),
    "nothing holds what is asked for beside it": wanted_as(
        layout=Layout((7, 4), (B, run("ghost", 24, 0, 4))), boxes=MORE
    ),
    "parts that do not tile": wanted_as(boxes=(rows(0, 3), rows(2, 6))),
    "parts of the whole that do not tile it": lambda src, t: (
        src, replace(all_of(src, LAST), boxes=(rows(0, 9), rows(8, 17))),
    ),
    "fewer places than elements": wanted_as(layout=Layout((5, 4), MIDDLE.pieces)),
    "places outside": wanted_as(layout=Layout(SHAPE, (replace(B, at=1),))),
    "elements that are not there": wanted_as(layout=Layout(SHAPE, (replace(B, to=1),))),
    "more elements than there are": wanted_as(
        layout=Layout(SHAPE, (replace(B, loops=(Loop(25, 1, 1),)),))
    ),
    "a value whose part is not there": in_last(lambda s: replace(s, value=BlockScaled("nowhere"))),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_one_damaged_layer_of_many_is_refused_as_it_is_alone(damage: Change) -> None:
    src, wanted = damage(model(), target(LAST, 1))
    alone, prover = prover_of(replace(src)), prover_of(src)
    with pytest.raises(CoverageError) as expected:
        alone.prove(wanted)
    for each in (*TARGETS[:-EXPERTS], *PADDED, *(all_of(src, layer) for layer in range(LAST))):
        prover.prove(each)
    with pytest.raises(CoverageError) as found:
        prover.prove(wanted)
    assert str(found.value) == str(expected.value)


SWAPPED = concat([experts(LAST)[e] for e in (1, 0, 2)])
OTHERWISE: dict[str, Change] = {
    "cut elsewhere": held_as(concat(experts(LAST)), rows(0, 5), rows(5, 18)),
    "in one chunk": held_as(concat(experts(LAST)), rows(0, 18)),
    "two names swapped where they are stored": held_as(SWAPPED),
    "two names swapped where they are asked for": wanted_as(layout=experts(LAST)[2]),
    "the tensor of another layer": wanted_as(layout=experts(1)[1]),
    "transposed where it is stored": held_as(
        concat([x.permute(1, 0).reshape(6, 4) for x in experts(LAST)])
    ),
    "transposed where it is asked for": wanted_as(
        layout=MIDDLE.permute(1, 0), boxes=(Box.whole((4, 6)),)
    ),
    "the last rows alone": wanted_as(
        layout=MIDDLE.narrow(0, 4, 6), boxes=(Box.whole((2, 4)),)
    ),
    "all of it": wanted_as(layout=concat(experts(LAST)), boxes=(Box.whole(TALL),)),
}  # fmt: skip


@pytest.mark.parametrize("change", OTHERWISE.values(), ids=OTHERWISE)
def test_a_layer_that_is_otherwise_has_copies_of_its_own(change: Change) -> None:
    src, wanted = change(model(), target(LAST, 1))
    prover = prover_of(replace(src))
    for each in TARGETS[:-EXPERTS]:
        prover.prove(each).copies(WHOLE[0])
    assert copies(prover.prove(wanted)) == copies(prover_of(src).prove(wanted))


def test_parts_of_two_tensors_in_another_order_have_copies_of_their_own() -> None:
    logical = {name: Logical(name, SHAPE, F32) for name in ("a", "b", "x", "y")}
    held: dict[str, Stored] = {}
    for layer, order in enumerate(("aabb", "xyyx")):
        parts = zip(order, (0, 12, 24, 36), (0, 12, 0, 12), strict=True)
        layout = Layout((12, 4), tuple(run(*part, 12) for part in parts))
        held[fused(layer)] = stored(layer, layout, rows(0, 12))
    src = Manifest("dcp", "/here", held, logical, {})
    for name, places in {"a": [(0, 0), (12, 12)], "x": [(0, 0), (12, 36)]}.items():
        proven = prover_of(src).prove(Target(name, F32, Layout.of(name, SHAPE), WHOLE))
        assert sorted((c.piece.to, c.piece.at) for c in proven.copies(WHOLE[0])) == places


@pytest.mark.parametrize("changes", [{"dtype": BF16}, {"value": shifted(1.0)}], ids=str)
def test_another_element_type_or_value_is_looked_at_by_itself(looked_at, changes) -> None:
    src, _ = in_last(lambda s: replace(s, **changes))(model(), TARGETS[0])
    for each in TARGETS:
        prover_of(src).prove(each)
    assert looked_at == [f"{layer}.{e}" for layer in (0, LAST) for e in range(EXPERTS)]


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experts of four layers, each two tensors in two chunks."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": LAYERS}
    config = of("gpt_oss", DENSE | sizes, num_local_experts=4, num_experts_per_tok=2)
    held = table_for(config).dialects["hf"]
    shapes = {name: held[name].layout.shape for name in held}
    folder = tmp_path_factory.mktemp("layers")
    tensors = {
        name: random_tensor(x, torch.float32, k) for k, (name, x) in enumerate(shapes.items())
    }
    write_hf(folder / "hf", tensors, config)
    intarsia.convert(folder / "hf", folder / "dcp", to="dcp", mesh="fsdp=2", digests=False)
    return folder / "dcp"


@pytest.mark.parametrize("lie", LIES[:4], ids=lambda lie: lie.title)
@pytest.mark.parametrize("layer", [0, LAST])
def test_a_file_that_lies_about_one_layer_is_not_converted(
    layers: Path, layer: int, lie: Lie, tmp_path: Path
) -> None:
    name = f"model.layers.{layer}.mlp.experts.gate_up_proj"

    def tell(tensors: dict[str, TensorRecord]) -> None:
        held = tensors[name]
        assert [c.box.offsets for c in held.chunks] == [(0, 0, 0), (2, 0, 0)]
        tensors[name] = replace(held, chunks=lie.tell(held.chunks))

    source = rewrite(layers, tmp_path / "in", tell)
    with pytest.raises(CoverageError, match=rf"the chunks of `{name}` do not tile it"):
        intarsia.convert(source, tmp_path / "out", to="torch_dist")
    assert not leftovers(tmp_path)

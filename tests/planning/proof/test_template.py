"""Copies into tensors that differ by name alone are worked out once, for the planner and for who moves bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.dtypes import BY_NAME
from intarsia.layout import Layout, concat, run
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored, Target
from intarsia.planning.proof import prover_of, template
from tests.checkpoints import llama_config, model, write_hf

BF16 = BY_NAME["BF16"]


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Layout, Box]]:
    """The boxes of which copies were worked out."""
    found: list[tuple[Layout, Box]] = []
    recipe = template._recipe
    monkeypatch.setattr(template, "_recipe", lambda *a: (found.append(a[:2]), recipe(*a))[1])
    return found


def two_layers(*shapes: tuple[int, int]) -> tuple[Manifest, list[Target]]:
    """Two gates and two ups, and what fuses each pair."""
    stored, logical, targets = {}, {}, []
    for layer, shape in enumerate(shapes):
        parts = [Layout.of(f"{layer}.{name}", shape) for name in ("gate", "up")]
        for k, part in enumerate(parts):
            (name,) = part.tensors
            chunk = Chunk(Box.whole(shape), f"{layer}", 100 * k, part.size * 2)
            stored[name] = Stored(name, BF16, part, (chunk,), key=name)
            logical[name] = Logical(name, shape, BF16)
        both = concat(parts)
        targets.append(Target(f"{layer}.fc1", BF16, both, (Box.whole(both.shape),)))
    return Manifest("hf", "/here", stored, logical, {"0": 1, "1": 1}), targets


def test_tensors_that_differ_by_name_share_their_copies_each_from_its_own_chunks(
    worked_out,
) -> None:
    src, targets = two_layers((3, 4), (3, 4))
    box = Box((1, 0), (4, 4))
    first, second = (prover_of(src).prove(t).copies(box) for t in targets)
    assert [c.piece for c in first] == [c.piece for c in second]
    assert [(c.stored.name, c.chunk.file) for c in second] == [("1.gate", "1"), ("1.up", "1")]
    assert len(worked_out) == 1


def test_tensors_that_differ_by_name_share_the_copies_of_a_stretch(worked_out) -> None:
    src, targets = two_layers((3, 4), (3, 4))
    first, second = (prover_of(src).prove(t).stretch(10, 15) for t in targets)
    assert [(c.piece.at, c.piece.to, c.piece.run) for c in second] == [(10, 0, 2), (0, 2, 3)]
    assert [c.piece for c in first] == [c.piece for c in second]
    assert [(c.stored.name, c.chunk.file) for c in second] == [("1.gate", "1"), ("1.up", "1")]
    assert len(worked_out) == 1


def test_tensors_of_other_shapes_share_nothing(worked_out) -> None:
    src, targets = two_layers((3, 4), (4, 3))
    for each in targets:
        found = prover_of(src).prove(each).copies(Box((0, 0), (6, 3)))
        assert sum(c.piece.size for c in found) == 18
    assert len(worked_out) == 2


def test_tensors_in_another_order_share_nothing(worked_out) -> None:
    parts = [Layout.of(name, (2, 2)) for name in "xyz"]
    chunk = Chunk(Box.whole((6, 2)), "file", 0, 24)
    stored = {"xyz": Stored("xyz", BF16, concat(parts), (chunk,))}
    src = Manifest("hf", "/", stored, {n: Logical(n, (2, 2), BF16) for n in "xyz"}, {"file": 1})
    whole = Box.whole((6, 2))
    for order in ((2, 1, 0), (1, 0, 2)):
        layout = concat([parts[k] for k in order])
        found = prover_of(src).prove(Target("t", BF16, layout, (whole,))).copies(whole)
        assert sorted((c.piece.to // 4, c.piece.at // 4) for c in found) == [*enumerate(order)]
    assert len(worked_out) == 2


def test_padding_stays_padding_where_another_source_has_elements_in_its_place() -> None:
    """The first layer is stored with the padding that is asked for, the second with a tensor there."""
    box, stored, logical = Box.whole((3, 2)), {}, {"z": Logical("z", (2,), BF16)}
    for name, more in (("x", ()), ("y", (run("z", 4, 0, 2),))):
        logical[name] = Logical(name, (4, 2), BF16)
        layouts = {
            f"{name}.0": Layout((3, 2), (run(name, 0, 0, 4), *more)),
            f"{name}.1": Layout((2, 2), (run(name, 0, 4, 4),)),
        }
        for key, layout in layouts.items():
            chunk = Chunk(Box.whole(layout.shape), key, 0, 2 * layout.size)
            stored[key] = Stored(key, BF16, layout, (chunk,), key=key)
    src = Manifest("hf", "/", stored, logical, {})
    for name in ("x", "y"):
        wanted = Target(name, BF16, Layout((3, 2), (run(name, 0, 0, 4),)), (box,))
        found = prover_of(src).prove(wanted).copies(box)
        assert all(c.chunk.file == f"{name}.0" for c in found)
        filled = sum(c.piece.size for c in found)
    assert filled == 4, "the tensor `z` is not asked for"


def test_what_is_not_kept_is_worked_out_again(worked_out, monkeypatch) -> None:
    monkeypatch.setattr(template, "MOST_BOXES", 1)
    src, (target, _) = two_layers((3, 4), (3, 4))
    proven = prover_of(src).prove(target)
    for rows in (1, 2, 1, 2):
        assert sum(c.piece.size for c in proven.copies(Box((0, 0), (rows, 4)))) == 4 * rows
    assert len(worked_out) == 3


def test_two_threads_that_ask_at_once_what_is_held_of_a_tensor_both_hear_all_of_it() -> None:
    templates, heard = template.Templates(), []

    class Slow(tuple):
        """Pieces between which another thread asks."""

        def __iter__(self):
            for piece in tuple.__iter__(self):
                yield piece
                if not heard:
                    heard.append(None)
                    heard.append(templates.held_of(stored, Layout.of("z", (2, 2))))

    parts = [Layout.of(name, (2, 2)) for name in "xyz"]
    whole = concat(parts)
    stored = Stored("xyz", BF16, Layout(whole.shape, Slow(whole.pieces)), ())
    assert templates.held_of(stored, parts[0]).mapped == 4
    assert [each.mapped for each in heard[1:]] == [4]


@pytest.mark.parametrize("to", ["dcp", "torch_dist"])
def test_a_conversion_works_out_no_copies_that_its_plan_did(
    worked_out, to: str, tmp_path: Path
) -> None:
    src = write_hf(tmp_path / "hf", model(llama_config(), torch.float32), llama_config())
    intarsia.plan(src, to=to, mesh="tp=2")
    planned = len(worked_out)
    assert 0 < planned < 40, "one for each template and rank, not for each tensor"
    worked_out.clear()
    intarsia.convert(src, tmp_path / "out", to=to, mesh="tp=2", digests=False)
    assert len({*worked_out}) == len(worked_out), "no box of a template is worked out twice"
    assert len(worked_out) < 2 * planned, (
        "windows that span the parts of several ranks are boxes of their own"
    )

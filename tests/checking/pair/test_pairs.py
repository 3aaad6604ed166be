"""Which tensors of two checkpoints are compared with each other: by name, by tie, by main weight."""

from __future__ import annotations

from typing import Any

import pytest

from intarsia.checking.pair.pairs import Matched, Pair, match, windows_of_pair
from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import BY_NAME
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored
from intarsia.run.budget import Budget
from intarsia.state.names import master_of

TIED = {"tie_word_embeddings": True}
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


def manifest(tensors: dict[str, str], format: str = "hf", **more: Any) -> Manifest:
    """Tensors of four elements, each with its element type and its own bytes of one file."""
    stored, logical = {}, {}
    for k, (name, dtype) in enumerate(tensors.items()):
        size = 4 * BY_NAME[dtype].itemsize
        chunk = Chunk(Box.whole((4,)), "x", 32 * k, size)
        stored[name] = Stored(name, BY_NAME[dtype], Layout.of(name, (4,)), (chunk,), key=name)
        logical[name] = Logical(name, (4,), BY_NAME[dtype])
    return Manifest(format, "nowhere", stored, logical, {"x": 32 * len(tensors)}, **more)


def matched(a: Manifest, b: Manifest) -> Matched:
    return match(Checkpoint(a), Checkpoint(b))


def names(pairs: tuple[Pair, ...]) -> list[tuple[str, str]]:
    return [(p.a.name, p.b.name) for p in pairs]


def test_equal_names_are_pairs_and_the_rest_is_of_one_side() -> None:
    found = matched(manifest({"x": "F32", "y": "F32"}), manifest({"y": "BF16", "z": "F32"}))
    assert names(found.pairs) == [("y", "y")]
    assert (found.only_in_a, found.only_in_b, found.notes) == (("x",), ("z",), ())


def test_a_tied_tensor_that_one_side_leaves_out_is_its_twin_from_either_side() -> None:
    both = manifest({HEAD: "F32", TABLE: "F32"}, config=TIED | {"model_type": "llama"} | SIZES)
    one = manifest({TABLE: "F32"}, config=both.config)
    found = matched(both, one)
    assert names(found.pairs) == [(TABLE, TABLE), (HEAD, TABLE)]
    assert names(matched(one, both).pairs) == [(TABLE, TABLE), (TABLE, HEAD)]
    assert found.notes == (f"`{HEAD}` is tied and not stored in B; compared with `{TABLE}`",)
    assert not found.only_in_a


SIZES = {
    "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1, "vocab_size": 4, "head_dim": 8,
}  # fmt: skip


def test_a_main_weight_in_the_weight_s_place_is_held_against_both_of_the_other_side() -> None:
    apart = manifest({"w": "BF16", master_of("w"): "F32"})
    within = manifest({"w": "F32"}, "fsdp_dtensor")
    found = matched(apart, within)
    assert names(found.pairs) == [("w", "w"), (master_of("w"), "w")]
    assert [p.rounded for p in found.pairs] == [True, False]
    turned = matched(within, apart)
    assert names(turned.pairs) == [("w", "w"), ("w", master_of("w"))]
    assert (found.only_in_a, found.only_in_b) == (turned.only_in_a, turned.only_in_b) == ((), ())


def test_a_main_weight_that_is_a_second_name_of_its_weight_needs_no_partner() -> None:
    seen_twice = manifest({"w": "F32", master_of("w"): "F32"}, "fsdp_dtensor")
    same = seen_twice.stored["w"].chunks
    twin = seen_twice.stored[master_of("w")]
    stored = {"w": seen_twice.stored["w"], twin.name: Stored(
        twin.name, twin.dtype, twin.layout, same, key="w"
    )}  # fmt: skip
    a = Manifest("fsdp_dtensor", "nowhere", stored, seen_twice.logical, {"x": 64})
    found = matched(a, manifest({"w": "F32"}))
    assert names(found.pairs) == [("w", "w")]
    assert not found.only_in_a


def test_main_weights_are_held_against_fp32_weights_of_a_side_that_has_none() -> None:
    twice = manifest({"v": "F32", master_of("v"): "F32", "w": "F32", master_of("w"): "F32"})
    found = matched(twice, manifest({"v": "F32", "w": "F32"}))
    assert names(found.pairs)[2:] == [(master_of("v"), "v"), (master_of("w"), "w")]
    assert (found.only_in_a, found.only_in_b, len(found.notes)) == ((), (), 1)
    assert "2 main weights of A" in found.notes[0]
    assert "weights of B" in found.notes[0]
    turned = matched(manifest({"v": "F32", "w": "F32"}), twice)
    assert names(turned.pairs)[2:] == [("v", master_of("v")), ("w", master_of("w"))]
    called = ["v", "w", master_of("v"), master_of("w")]
    assert [p.name for p in found.pairs] == [p.name for p in turned.pairs] == called


@pytest.mark.parametrize(
    "other", [{"v": "F32", master_of("v"): "F32", "w": "F32"}, {"v": "F32", "w": "BF16"}]
)
def test_main_weights_that_the_other_side_lost_or_rounded_have_no_partner(
    other: dict[str, str],
) -> None:
    twice = manifest({"v": "F32", master_of("v"): "F32", "w": "F32", master_of("w"): "F32"})
    assert matched(twice, manifest(other)).only_in_a[-1:] == (master_of("w"),)


def test_a_flipped_pair_keeps_what_it_knows() -> None:
    x, y = Logical("x", (4,), BY_NAME["F32"]), Logical("y", (4,), BY_NAME["BF16"])
    pair = Pair(x, y, rounded=True)
    assert (pair.flipped.a, pair.flipped.b, pair.flipped.rounded) == (y, x, True)
    assert pair.flipped.flipped == pair


def test_the_windows_of_a_pair_leave_room_for_both_sides_in_the_wider_type() -> None:
    narrow, wide = (Logical("w", (64, 512), BY_NAME[dtype]) for dtype in ("BF16", "F32"))
    budget = Budget(16 << 20, 1, share_bytes=8 << 10)
    for pair in (Pair(narrow, wide), Pair(wide, narrow)):
        boxes = list(windows_of_pair(pair, budget))
        assert len(boxes) > 1
        assert all(2 * 4 * box.size <= budget.window_bytes for box in boxes)
        assert sum(box.size for box in boxes) == narrow.size

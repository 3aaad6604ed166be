"""Weights that two sides quantise differently have no partner, and a note says so."""

from __future__ import annotations

from typing import Any

from intarsia.checking.pair.pairs import match
from intarsia.checking.pair.quantised_differently import (
    QuantisedDifferently,
    quantised_differently,
)
from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import BY_NAME
from intarsia.layout import Layout
from intarsia.mesh import Shape
from intarsia.planning.manifest import Logical, Manifest, Stored
from intarsia.quantised import find_quantised

FP8 = {
    "quantization_config": {
        "quant_method": "fp8", "weight_block_size": [4, 4], "activation_scheme": "dynamic",
    }
}  # fmt: skip
SCALE = "a.proj.weight_scale_inv"
QUANTISED = {"a.proj.weight": ("F8_E4M3", (8, 8)), SCALE: ("F32", (2, 2))}
PLAIN = {"a.proj.weight": ("BF16", (8, 8))}


def manifest(tensors: dict[str, tuple[str, Shape]], config: dict[str, Any]) -> Manifest:
    logical = {n: Logical(n, shape, BY_NAME[dtype]) for n, (dtype, shape) in tensors.items()}
    stored = {n: Stored(n, x.dtype, Layout.of(n, x.shape), (), key=n) for n, x in logical.items()}
    found = find_quantised(logical, config, None)
    return Manifest("hf", "nowhere", stored, logical, {}, config=config, quantised=found)


def test_two_sides_that_quantise_nothing_are_alike() -> None:
    assert (
        quantised_differently(manifest(PLAIN, {}), manifest(PLAIN, {}), None)
        == QuantisedDifferently()
    )


def test_two_sides_that_quantise_alike_are_compared_bit_by_bit() -> None:
    both = manifest(QUANTISED, FP8)
    assert both.quantised.weights
    assert quantised_differently(both, manifest(QUANTISED, FP8), None) == QuantisedDifferently()


def test_a_quantised_weight_and_its_scale_have_no_partner_among_plain_weights() -> None:
    a, b = manifest(QUANTISED, FP8), manifest(PLAIN, {})
    found = quantised_differently(a, b, None)
    assert found.a == {"a.proj.weight", SCALE}
    assert found.b == {"a.proj.weight"}
    assert found.names == ("a.proj.weight", SCALE)
    assert "B is not quantised: 1 weights are not comparable" in found.text
    assert "weight F8_E4M3, weight_scale_inv F32 in A; BF16 in B" in found.text
    turned = quantised_differently(b, a, None)
    assert (turned.a, turned.b) == (found.b, found.a)


def test_other_spellings_are_not_looked_for_among_weights_that_are_quantised_differently() -> None:
    sizes = {
        "model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 4, "head_dim": 8,
    }  # fmt: skip
    name = "model.layers.0.mlp.up_proj.weight"
    a = manifest({name: ("F8_E4M3", (8, 8)), f"{name}_scale_inv": ("F32", (2, 2))}, sizes | FP8)
    b = manifest({name: ("BF16", (8, 8))}, sizes)
    found = match(Checkpoint(a), Checkpoint(b))
    assert (found.pairs, found.only_in_a, found.only_in_b) == ((), (), ())
    assert found.apart.names == (name, f"{name}_scale_inv")


def test_a_tied_head_that_one_side_alone_quantises_has_no_partner() -> None:
    sizes = {"vocab_size": 8, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 12}
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes}
    table = {"transformer.wte.weight": ("BF16", (8, 8))}
    head = {"lm_head.weight": ("F8_E4M3", (8, 8)), "lm_head.weight_scale_inv": ("F32", (2, 2))}
    a, b = (
        manifest(table | head, config | FP8),
        manifest(table | {"lm_head.weight": ("BF16", (8, 8))}, config),
    )
    found = match(Checkpoint(a), Checkpoint(b))
    assert [pair.name for pair in found.pairs] == [*table]
    assert (found.only_in_a, found.only_in_b) == ((), ())
    assert found.apart.names == tuple(head)


def test_codes_of_one_kind_are_compared_whatever_became_of_their_scales() -> None:
    whole = manifest(QUANTISED, FP8)
    rounded = manifest(QUANTISED | {SCALE: ("BF16", (2, 2))}, FP8)
    lacking = manifest({"a.proj.weight": ("F8_E4M3", (8, 8))}, FP8)
    packed = {"a.proj.weight_packed": ("I32", (8, 2)), "a.proj.weight_scale": ("F32", (8, 1))}
    for one, other in ((whole, rounded), (whole, lacking), (rounded, lacking)):
        for pair in ((one, other), (other, one)):
            assert quantised_differently(*pair, None) == QuantisedDifferently()
    for unlike in (
        QUANTISED | {"a.proj.weight": ("F8_E5M2", (8, 8))},
        {"a.proj.weight": ("F8_E4M3", (8, 8)), "a.proj.weight_scale": ("F32", ())},
        packed,
    ):
        found = quantised_differently(whole, manifest(unlike, FP8), None)
        assert (found.a, found.b) == ({*QUANTISED}, {*unlike}), unlike


def test_a_scale_that_was_left_behind_is_set_apart_with_its_weight() -> None:
    left = manifest(PLAIN | {SCALE: ("F32", (2, 2))}, FP8)
    found = match(Checkpoint(manifest(QUANTISED, FP8)), Checkpoint(left))
    assert (found.pairs, found.only_in_a, found.only_in_b) == ((), (), ())


def test_a_quantised_weight_that_the_other_side_lacks_is_missing() -> None:
    a, b = manifest(QUANTISED, FP8), manifest({"b.norm.weight": ("BF16", (8,))}, {})
    found = match(Checkpoint(a), Checkpoint(b))
    assert found.apart == QuantisedDifferently()
    assert found.only_in_a == tuple(QUANTISED)

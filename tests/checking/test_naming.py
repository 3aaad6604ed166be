"""What a name tells of a tensor, whoever spelled it."""

from __future__ import annotations

import pytest

from intarsia.checking.naming import ModelPlace, place_of, tensors_in, units_of
from intarsia.dtypes import BY_NAME
from intarsia.layout import Layout, concat
from intarsia.planning.manifest import Stored

BF16 = BY_NAME["BF16"]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (
            "model.layers.3.mlp.up_proj.weight",
            ModelPlace("model.layers.*.mlp.up_proj.weight", "", 3),
        ),
        (
            "transformer.h.11.attn.c_attn.weight",
            ModelPlace("transformer.h.*.attn.c_attn.weight", "", 11),
        ),
        (
            "decoder.layers.2.mlp.experts.experts.1.linear_fc2.weight",
            ModelPlace("decoder.layers.*.mlp.experts.experts.*.linear_fc2.weight", "", 2, 1),
        ),
        (
            "optimizer.exp_avg_sq.model.layers.0.mlp.experts.7.up_proj.weight",
            ModelPlace("model.layers.*.mlp.experts.*.up_proj.weight", "exp_avg_sq", 0, 7),
        ),
        ("lm_head.weight", ModelPlace("lm_head.weight")),
        ("mtp.layers.0.norm.weight", ModelPlace("mtp.layers.*.norm.weight", "", 0)),
    ],
)
def test_a_name_tells_its_place(name: str, place: ModelPlace) -> None:
    assert place_of(name) == place


def test_rows_of_a_vocabulary_are_tokens() -> None:
    assert place_of("optimizer.exp_avg.model.embed_tokens.weight").is_vocabulary
    assert place_of("output_layer.weight").is_vocabulary
    assert not place_of("model.layers.0.mlp.up_proj.weight").is_vocabulary


def stored(name: str, *shape: int) -> Stored:
    return Stored(name, BF16, Layout.of(name, shape), ())


def test_a_stack_of_layers_and_experts_is_many_matrices() -> None:
    units = units_of(stored("decoder.layers.mlp.experts.experts.linear_fc1.weight", 2, 3, 4, 5))
    assert [(u.place.layer, u.place.expert, u.first_row) for u in units] == [
        (0, 0, 0), (0, 1, 4), (0, 2, 8), (1, 0, 12), (1, 1, 16), (1, 2, 20)
    ]  # fmt: skip
    assert {(u.rows, u.columns) for u in units} == {(4, 5)}


def test_experts_in_one_tensor_are_counted_by_its_first_axis() -> None:
    units = units_of(stored("model.layers.4.mlp.experts.gate_up_proj", 3, 6, 5))
    assert [(u.place.layer, u.place.expert) for u in units] == [(4, 0), (4, 1), (4, 2)]


def test_a_matrix_and_a_scalar_are_themselves() -> None:
    (unit,) = units_of(stored("model.layers.4.mlp.up_proj.weight", 6, 5))
    assert (unit.rows, unit.columns) == (6, 5)
    (unit,) = units_of(stored("optimizer.step.lm_head.weight"))
    assert (unit.rows, unit.columns) == (1, 1)


def test_rows_name_the_logical_tensors_in_them() -> None:
    layout = concat([Layout.of("gate", (4, 5)), Layout.of("up", (4, 5))])
    fused = Stored("fc1", BF16, layout, ())
    (unit,) = units_of(fused)
    assert tensors_in(fused, unit, 0, 4) == ("gate",)
    assert tensors_in(fused, unit, 5, 7) == ("up",)
    assert tensors_in(fused, unit) == ("gate", "up")

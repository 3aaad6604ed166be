"""Names of Megatron's tensors, taken apart and put together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from intarsia.errors import FamilyError
from intarsia.family import Param, table_for
from intarsia.format.megatron import keys
from intarsia.format.megatron.keys import (
    DIALECTS,
    Key,
    MegatronRows,
    experts_of_row,
    half_of,
    padded,
    smallest_parts,
    torch_dist_rows,
)
from intarsia.layout import Layout, concat, cover
from intarsia.mesh import Rule
from tests.family.arrays import carried, element_ids
from tests.family.configs import CASES

NAMES = {
    "output_layer.weight": Key("output_layer.weight"),
    "decoder.layers.mlp.linear_fc2.weight": Key("mlp.linear_fc2.weight", "decoder.layers"),
    "decoder.layers.12.mlp.linear_fc1.weight_v": Key(
        "mlp.linear_fc1.weight", "decoder.layers", 12, half=1
    ),
    "decoder.layers.mlp.experts.experts.linear_fc1.weight": Key(
        "mlp.experts.experts.linear_fc1.weight", "decoder.layers"
    ),
    "decoder.layers.0.mlp.experts.experts.7.linear_fc1.bias_w": Key(
        "mlp.experts.experts.linear_fc1.bias", "decoder.layers", 0, 7, 0
    ),
    "mtp.layers.0.transformer_layer.mlp.linear_fc2.weight": Key(
        "transformer_layer.mlp.linear_fc2.weight", "mtp.layers", 0
    ),
    "decoder.layers.3.self_attention.in_proj.weight.query": Key(
        "self_attention.in_proj.weight.query", "decoder.layers", 3
    ),
}
MODELS = ["llama", "qwen3_moe", "qwen3_next", "deepseek_v3", "gpt_oss", "glm4_moe"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_its_parts(name: str) -> None:
    assert Key.parse(name) == NAMES[name]
    assert str(NAMES[name]) == name


def test_axes_that_a_name_tells() -> None:
    stack = Key.parse("decoder.layers.mlp.experts.experts.linear_fc1.weight")
    assert (stack.stacked, stack.of_experts) == (True, True)
    one = replace(stack, layer=2, expert=0)
    assert (one.stacked, one.of_experts) == (False, False)
    assert not Key.parse("decoder.layers.0.mlp.shared_experts.linear_fc1.weight").of_experts


def test_an_expert_is_a_slice_of_its_stack() -> None:
    table = table_for(CASES["gpt_oss"])
    assert table is not None
    arrays = element_ids(table.logical)
    for name, row in table.dialects["megatron"].items():
        if row.rule.ep is None:
            assert experts_of_row(row) == []
            continue
        whole = carried(row.layout, arrays)
        for expert, one in enumerate(experts_of_row(row)):
            np.testing.assert_array_equal(carried(one.layout, arrays), whole[expert], name)
            assert one.rule.expert == (expert, len(whole))
            assert one.rule.tp == (None if row.rule.tp is None else row.rule.tp - 1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("spec", DIALECTS)
def test_parts_hold_what_their_rows_hold(model: str, spec: str) -> None:
    table = table_for(CASES[model])
    assert table is not None
    parts = torch_dist_rows(table, spec)
    assert len({part.name for part in parts}) == len(parts)
    held: dict[str, list[Layout]] = {}
    for part in parts:
        key = replace(Key.parse(part.name), expert=None, half=None)
        held.setdefault(str(key), []).append(part.layout)
    rows = table.dialects[DIALECTS[spec]]
    assert {*held} == {*rows}
    for name, layouts in held.items():
        found = cover(rows[name].layout, layouts)
        assert found.exact
        assert sum(x.size for x in layouts) == rows[name].layout.size


@pytest.mark.parametrize("model", MODELS)
def test_every_spelling_finds_its_row(model: str) -> None:
    table = table_for(CASES[model])
    assert table is not None
    rows, arrays = MegatronRows(table), element_ids(table.logical)
    for part in torch_dist_rows(table):
        found = rows.find(Key.parse(part.name), part.layout.shape)
        assert found is not None
        np.testing.assert_array_equal(carried(found.layout, arrays), carried(part.layout, arrays))


def test_a_stack_is_numpys() -> None:
    table = table_for(CASES["qwen3_moe"])
    assert table is not None
    rows, arrays = MegatronRows(table), element_ids(table.logical)
    key = Key.parse("decoder.layers.mlp.experts.experts.linear_fc1.weight")
    found = rows.row(key)
    assert found is not None
    each = [table.dialects["megatron"][str(replace(key, layer=n))] for n in range(3)]
    expected = np.stack([carried(row.layout, arrays) for row in each])
    np.testing.assert_array_equal(carried(found.layout, arrays), expected)
    assert (found.rule.ep, found.rule.tp) == (1, 2)


def test_layers_that_differ_have_no_stack() -> None:
    table = table_for(CASES["deepseek_v3"])
    assert table is not None
    rows = MegatronRows(table)
    assert rows.row(Key.parse("decoder.layers.mlp.router.weight")) is None
    assert rows.row(Key.parse("decoder.layers.self_attention.linear_proj.weight")) is not None


def test_wrappers_are_taken_off() -> None:
    table = table_for(CASES["llama"])
    assert table is not None
    rows = MegatronRows(table)
    assert rows.bare("module.module.decoder.final_layernorm.weight") == (
        "decoder.final_layernorm.weight"
    )
    assert rows.bare("module.decoder.nothing") == "decoder.nothing"


def test_halves_are_gate_and_up() -> None:
    table = table_for(CASES["llama"])
    assert table is not None
    row = table.dialects["megatron"]["decoder.layers.0.mlp.linear_fc1.weight"]
    assert half_of(row, 0).layout.tensors == ("model.layers.0.mlp.gate_proj.weight",)
    assert half_of(row, 1).layout.tensors == ("model.layers.0.mlp.up_proj.weight",)


def test_only_the_vocabulary_is_padded() -> None:
    embedding = Param("embedding.word_embeddings.weight", Layout.of("e", (5, 2)), Rule(tp=0))
    assert padded(embedding, (8, 2)).layout.mapped == 10
    other = replace(embedding, name="decoder.layers.0.mlp.linear_fc2.weight")
    assert padded(other, (8, 2)) == other
    table = table_for(CASES["llama"])
    assert table is not None
    rows = MegatronRows(table)
    with pytest.raises(FamilyError, match=r"has shape \[25\].*gives \[24\]"):
        rows.find(Key.parse("decoder.final_layernorm.weight"), (25,))


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_the_parts_of_every_layer_are_those_of_its_own_row(config) -> None:
    """Experts of layers that differ by name are made once and renamed."""
    table = table_for(config)
    if table is None or not table.dialects["megatron"]:
        return
    rows = table.dialects["megatron"].values()
    expected = [
        Param(str(key), part.layout, part.rule, part.value)
        for row in rows
        for key, part in smallest_parts(row, keys._halves)
    ]
    assert torch_dist_rows(table) == expected


def test_a_layer_whose_experts_are_stacked_otherwise_has_parts_of_its_own() -> None:
    table = table_for(CASES["qwen3_moe"])
    assert table is not None
    rows = table.dialects["megatron"]
    name = "decoder.layers.1.mlp.experts.experts.linear_fc1.weight"
    row = rows[name]
    count = row.layout.shape[1]
    turned = concat([row.layout.narrow(1, 1, count), row.layout.narrow(1, 0, 1)], axis=1)
    rows._made[name] = replace(row, layout=turned)
    found = {x.name: x.layout for x in torch_dist_rows(table)}
    for expert, part in enumerate(experts_of_row(rows[name])):
        for half, end in enumerate("wv"):
            each = name.replace("experts.experts.", f"experts.experts.{expert}.") + f"_{end}"
            assert found[each] == half_of(part, half).layout
    rows._made.clear()

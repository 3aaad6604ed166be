"""One tensor that holds several parts is told by its parts, not by shards of a mesh that never was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia.checking.diagnosis.rearranged.fused import Form, named_order, parts_of
from tests.checkpoints import write_hf

Tensor = torch.Tensor
NEOX = {"model_type": "gpt_neox", "num_attention_heads": 4}
FALCON = {"model_type": "falcon", "num_attention_heads": 4, "num_kv_heads": 2}
TOWER = {"model_type": "clip", "vision_config": {"num_heads": 4}, "num_attention_heads": 7}
LATENT = {
    "model_type": "deepseek_v3",
    "num_attention_heads": 4,
    "qk_nope_head_dim": 3,
    "v_head_dim": 5,
}
GATED = {"model_type": "none", "num_attention_heads": 4, "head_dim": 6}


def by_group(sizes: list[int], groups: int) -> Callable[[Tensor], Tensor]:
    """Parts that lie one after the other, group by group."""
    return lambda x: torch.cat([p.reshape(groups, -1, *x.shape[1:]) for p in x.split(sizes)], 1).reshape(x.shape)  # fmt: skip


def one_by_one(sizes: list[int], groups: int) -> Callable[[Tensor], Tensor]:
    """Parts that lie group by group, one after the other."""
    each = [n // groups for n in sizes]
    return lambda x: torch.cat([p.reshape(-1, *x.shape[1:]) for p in x.reshape(groups, -1, *x.shape[1:]).split(each, 1)])  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name", "rows", "wrong", "kind", "said"),
    [
        (NEOX, "layers.0.attention.query_key_value.weight", 48, one_by_one([16, 16, 16], 4), "qkv-permuted",
         "query, key and value of 16, 16, 16 rows lie in 4 groups in A and one after the other in B"),
        (NEOX, "layers.0.attention.query_key_value.weight", 48, lambda x: x.reshape(4, 3, 4, -1)[:, [2, 1, 0]].reshape(x.shape), "qkv-permuted",
         "query, key and value of 16, 16, 16 rows lie in 4 groups on one side and in 4 groups in the order value, key, query on the other"),
        (NEOX | {"num_attention_heads": 6}, "layers.0.attention.query_key_value.weight", 72, lambda x: by_group([24, 24, 24], 3)(one_by_one([24, 24, 24], 6)(x)), "qkv-interleaved",
         "query, key and value of 24, 24, 24 rows lie in 6 groups in A and in 3 shards, as the ranks of tp=3 fuse them, in B"),
        (NEOX, "layers.0.attention.query_key_value.weight", 48, lambda x: by_group([16, 16, 16], 16)(one_by_one([16, 16, 16], 4)(x)), "qkv-interleaved",
         "query, key and value of 16, 16, 16 rows lie in 4 groups in A and row by row in B"),
        ({}, "blocks.0.attn.qkv.weight", 48, lambda x: by_group([16, 16, 16], 4)(one_by_one([16, 16, 16], 2)(x)), "qkv-interleaved",
         "query, key and value of 16, 16, 16 rows lie in 2 shards, as the ranks of tp=2 fuse them, in A and in 4 shards, as the ranks of tp=4 fuse them, in B"),
        ({}, "blocks.0.attn.qkv.weight", 48, lambda x: torch.cat([x[32:], x[:32]]), "qkv-permuted",
         "query, key and value of 16, 16, 16 rows lie one after the other in A and one after the other in the order value, query, key in B,"
         " or one after the other in the order key, value, query in A and one after the other in B"),
        ({}, "layers.0.mlp.gate_up_proj.weight", 28, by_group([14, 14], 7), "gate-up-interleaved",
         "gate and up of 14, 14 rows lie one after the other in A and in 7 shards, as the ranks of tp=7 fuse them, in B"),
        ({}, "layers.0.mlp.gate_up_proj.weight", 28, by_group([14, 14], 2), "gate-up-interleaved",
         "gate and up of 14, 14 rows lie one after the other on one side and in 2 shards, as the ranks of tp=2 fuse them, on the other"),
        (FALCON, "h.0.self_attention.query_key_value.weight", 64, by_group([32, 16, 16], 2), "qkv-permuted",
         "query, key and value of 32, 16, 16 rows lie one after the other in A and in 2 groups in B"),
        (FALCON, "h.0.self_attention.query_key_value.weight", 64, by_group([32, 16, 16], 8), "qkv-interleaved",
         "query, key and value of 32, 16, 16 rows lie one after the other in A and in 8 shards, as the ranks of tp=8 fuse them, in B"),
        (TOWER, "visual.blocks.0.attn.qkv.bias", 48, by_group([16, 16, 16], 4), "qkv-permuted",
         "query, key and value of 16, 16, 16 rows lie one after the other in A and in 4 groups in B"),
        ({}, "blocks.0.attn.qkv.weight", 48, lambda x: torch.cat(x.chunk(3)[::-1]), "qkv-permuted",
         "query, key and value of 16, 16, 16 rows lie one after the other on one side and one after the other in the order value, key, query on the other"),
        ({}, "layers.0.mlp.gate_up_proj.weight", 48, by_group([24, 24], 4), "gate-up-interleaved",
         "gate and up of 24, 24 rows lie one after the other in A and in 4 shards, as the ranks of tp=4 fuse them, in B"),
        (GATED, "layers.0.self_attn.q_proj.weight", 48, one_by_one([24, 24], 4), "components-interleaved",
         "query and gate of 24, 24 rows lie in 4 groups in A and one after the other in B"),
    ],
)  # fmt: skip
def test_the_parts_of_one_tensor_are_told_in_the_forms_of_both_sides(
    tmp_path: Path, config: dict[str, Any], name: str, rows: int, wrong: Callable[[Tensor], Tensor], kind: str, said: str
) -> None:  # fmt: skip
    shape = (rows,) if name.endswith("bias") else (rows, 20)
    right = {name: torch.randn(shape, generator=torch.Generator().manual_seed(3))}
    a = write_hf(tmp_path / "a", right, config or None)
    b = write_hf(tmp_path / "b", {name: wrong(right[name])}, config or None)
    (found,) = intarsia.verify(a, b).different
    assert (found.kind, found.diagnosis.partition(": explains")[0]) == (kind, said)
    (back,) = intarsia.verify(b, a).different
    assert back.kind == kind


def test_what_latent_attention_fuses_is_told_head_by_head() -> None:
    parts = parts_of("layers.0.self_attn.kv_b_proj.weight", LATENT, LATENT, 32)
    assert parts is not None
    assert (parts.sizes, parts.groups) == ((12, 20), 4)
    order = named_order(parts, Form(4, (0, 1)).rows(parts), ("A", "B"), "rows")
    assert order is not None
    assert order.text == "key and value of 12, 20 rows lie one after the other in A and in 4 groups in B"  # fmt: skip


def test_an_order_that_is_no_form_of_the_parts_has_no_name() -> None:
    parts = parts_of("layers.0.attention.query_key_value.weight", NEOX, NEOX, 48)
    assert parts is not None
    reverse = Form(1, (0, 1, 2)).rows(parts)[::-1]
    assert named_order(parts, reverse, ("A", "B"), "rows") is None
    assert parts_of("layers.0.self_attn.o_proj.weight", NEOX, NEOX, 48) is None


def test_a_configuration_tells_the_heads_of_a_model_without_a_table(tmp_path: Path) -> None:
    config = {"model_type": "olmo2", "num_attention_heads": 4, "hidden_size": 32}
    norm, query = (f"model.layers.0.self_attn.{x}.weight" for x in ("q_norm", "q_proj"))
    seed = torch.Generator().manual_seed(1)
    right = {norm: torch.randn(32, generator=seed), query: torch.randn(32, 32, generator=seed)}
    wrong = {
        norm: right[norm].reshape(4, 2, 4).transpose(1, 2).reshape(32),
        query: right[query].reshape(4, 8, 32)[[0, 2, 1, 3]].reshape(32, 32),
    }
    a, b = (write_hf(tmp_path / x, y, config) for x, y in (("a", right), ("b", wrong)))
    found = {d.tensor: d.kind for d in intarsia.verify(a, b).different}
    assert found == {norm: "rope-permuted", query: "heads-permuted"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("h.0.mlp.dense_4h_to_h.weight", "rows-permuted"),
        ("h.0.attn.out_proj.weight", "rows-permuted"),
        ("blocks.0.attn.wq.weight", "rope-permuted"),
        ("blocks.0.attention.key.weight", "rope-permuted"),
        ("blocks.0.attn.to_q.weight", "rope-permuted"),
    ],
)
def test_only_queries_and_keys_of_a_model_without_a_table_have_rotary_halves(
    tmp_path: Path, name: str, kind: str
) -> None:
    right = torch.randn(64, 20, generator=torch.Generator().manual_seed(1))
    wrong = right.reshape(2, 32, 20).transpose(0, 1).reshape(64, 20)
    a = write_hf(tmp_path / "a", {name: right}, None)
    b = write_hf(tmp_path / "b", {name: wrong}, None)
    (found,) = intarsia.verify(a, b).different
    assert found.kind == kind


@pytest.mark.parametrize(
    ("name", "rows"), [("layers.0.mlp.gate_up_proj.weight", 56), ("layers.0.attn.qkv.weight", 72)]
)
def test_columns_of_what_a_projection_takes_are_no_parts_of_it(
    tmp_path: Path, name: str, rows: int
) -> None:
    config = {"model_type": "none", "hidden_size": 24, "num_attention_heads": 4}
    right = torch.randn(rows, 24, generator=torch.Generator().manual_seed(1))
    wrong = torch.cat(right.chunk(2, 1)[::-1], 1)
    a, b = (write_hf(tmp_path / x, {name: y}, config) for x, y in (("a", right), ("b", wrong)))
    (found,) = intarsia.verify(a, b).different
    assert found.kind == "shards-permuted"

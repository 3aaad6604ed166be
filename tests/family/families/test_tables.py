"""What holds of every table: names, coverage, laziness, and errors that name the field."""

from __future__ import annotations

import time
from typing import Any

import pytest

from intarsia.errors import FamilyError
from intarsia.family import Table, model_types, table_for
from intarsia.family.table import DIALECTS, Layer
from intarsia.layout import Layout, cover
from intarsia.mesh import Rule
from intarsia.value import shifted
from tests.family.configs import CASES, DENSE, EXPERTS, GDN, LATENT, ROUTED, of


def made(config: dict[str, Any], **more: Any) -> Table:
    table = table_for(config, **more)
    assert table is not None
    return table


def test_every_model_type_has_a_case() -> None:
    tried = {config["model_type"] for config in CASES.values()}
    # Kimi-K2 is DeepSeek-V3 under another name, which Transformers does not have.
    assert set(model_types()) - tried == {"kimi_k2"}
    assert tried <= set(model_types())


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", CASES)
def test_rows_hold_every_element_once(case: str, dialect: str) -> None:
    table = made(CASES[case])
    rows = table.dialects[dialect]
    held: dict[str, list[Layout]] = {name: [] for name in table.logical}
    for name in rows:
        layout = rows[name].layout
        assert layout.mapped == layout.size, f"{name} is padded"
        assert set(layout.tensors) == set(rows.operands(name))
        for tensor in layout.tensors:
            held[tensor].append(layout)
    for name, shape in table.logical.items():
        if not held[name]:
            assert name in table.optional, f"no row of {dialect} holds {name}"
            assert dialect == "hf-module" or name in table.tied
            continue
        assert cover(Layout.of(name, shape), held[name]).exact, name


@pytest.mark.parametrize("case", CASES)
def test_rows_say_where_a_mesh_puts_them(case: str) -> None:
    table = made(CASES[case])
    layers = table.number("num_hidden_layers")
    for rows in table.dialects.values():
        for name, row in rows.items():
            rule, rank = row.rule, len(row.layout.shape)
            assert rule.layer is not None, name
            assert 0 <= rule.layer[0] < rule.layer[1] == layers, name
            assert all(axis is None or 0 <= axis < rank for axis in (rule.tp, rule.ep)), name
            assert rule.tp is None or rule.tp != rule.ep, name


def test_layers_of_experts_have_at_least_one() -> None:
    shared = {"num_experts": 0, "shared_expert_intermediate_size": 22}
    for dense in (
        of("qwen2_moe", DENSE, EXPERTS, shared),
        of("qwen3_next", DENSE, EXPERTS, GDN, shared),
    ):
        assert not any("expert" in name or ".gate." in name for name in made(dense).logical)
    for sparse in (
        of("qwen3_5_moe_text", DENSE, EXPERTS, GDN, shared),
        of("deepseek_v3", DENSE, ROUTED, LATENT, n_routed_experts=0),
        of("gpt_oss", DENSE, num_local_experts=0),
        of("mixtral", DENSE, num_local_experts=0),
    ):
        with pytest.raises(FamilyError, match=r"config.json gives layer \d 0 experts"):
            made(sparse)


def test_experts_are_one_each_on_disk_and_stacked_elsewhere() -> None:
    table = made(of("qwen3_moe", DENSE, EXPERTS))
    at = "model.layers.1.mlp.experts"
    assert table.dialects["hf"][f"{at}.2.down_proj.weight"].rule == Rule(
        tp=1, expert=(2, 3), layer=(1, 3)
    )
    for dialect, name in (
        ("hf-fused", f"{at}.gate_up_proj"),
        ("hf-module", f"{at}.gate_up_proj"),
        ("megatron", "decoder.layers.1.mlp.experts.experts.linear_fc1.weight"),
    ):
        row = table.dialects[dialect][name]
        assert row.layout.shape == (3, 28, 24)
        assert row.rule == Rule(ep=0, tp=1, layer=(1, 3))


def test_megatron_names_of_both_specs() -> None:
    table = made(of("deepseek_v3", DENSE, ROUTED, LATENT, num_nextn_predict_layers=1))
    engine, local = table.dialects["megatron"], table.dialects["megatron-local"]
    assert set(engine) - set(local) >= {
        "decoder.layers.0.mlp.linear_fc1.layer_norm_weight",
        "decoder.layers.1.self_attention.linear_q_up_proj.layer_norm_weight",
        "decoder.layers.1.self_attention.linear_kv_up_proj.layer_norm_weight",
        "mtp.layers.0.transformer_layer.self_attention.linear_q_up_proj.layer_norm_weight",
    }
    assert set(local) - set(engine) >= {
        "decoder.layers.0.pre_mlp_layernorm.weight",
        "decoder.layers.1.self_attention.q_layernorm.weight",
        "decoder.layers.1.self_attention.kv_layernorm.weight",
    }
    assert {n for n in engine if n.startswith("mtp.layers.0.") and "transformer" not in n} == {
        f"mtp.layers.0.{x}.weight" for x in ("enorm", "hnorm", "eh_proj", "final_layernorm")
    }


def test_wrapped_models_have_their_prefixes() -> None:
    table = made(CASES["qwen3_5"])
    assert "model.language_model.layers.0.linear_attn.A_log" in table.dialects["hf"]
    assert "lm_head.weight" in table.dialects["hf"]
    assert "mtp.fc.weight" in table.dialects["hf"]
    assert "language_model.decoder.layers.0.self_attention.A_log" in table.dialects["megatron"]
    assert "language_model.mtp.layers.0.eh_proj.weight" in table.dialects["megatron"]
    gemma = made(CASES["gemma3"])
    assert "language_model.model.layers.0.mlp.up_proj.weight" in gemma.dialects["hf"]
    assert "model.language_model.layers.0.mlp.up_proj.weight" in gemma.dialects["hf-module"]


def test_text_configuration_reads_the_wrappers_names() -> None:
    row = made(CASES["qwen3_5_text"]).known["model.language_model.layers.0.linear_attn.A_log"]
    assert row.layout.tensors == ("model.layers.0.linear_attn.A_log",)


NORM = "decoder.layers.0.self_attention.in_proj.layer_norm_weight"
GATED_NORM = "decoder.layers.0.self_attention.out_norm.weight"


@pytest.mark.parametrize(("said", "norm", "gated_norm"), [
    (None, 0.0, -1.0),  # Megatron-Bridge trains these families with centred norms
    (True, 0.0, -1.0),
    (False, 1.0, 0.0),
])  # fmt: skip
def test_norms_follow_what_megatrons_arguments_say(
    said: bool | None, norm: float, gated_norm: float
) -> None:
    config = of("qwen3_next", DENSE, EXPERTS, GDN, shared_expert_intermediate_size=22)
    table = made(config, zero_centered=said)
    rows = table.dialects["megatron"]
    assert (rows[NORM].value, rows[GATED_NORM].value) == (shifted(norm), shifted(gated_norm))
    assert rows["decoder.final_layernorm.weight"].value == shifted(norm)
    assert all(row.value.is_plain for row in table.dialects["hf"].values())


def test_plain_norms_are_shifted_only_where_megatrons_are_centred() -> None:
    config = of("llama", DENSE)
    name = "decoder.final_layernorm.weight"
    for said, shift in ((None, 0.0), (False, 0.0), (True, -1.0)):
        assert made(config, zero_centered=said).dialects["megatron"][name].value == shifted(shift)


def test_tied_heads_need_not_be_stored() -> None:
    table = made(of("llama", DENSE, tie_word_embeddings=True))
    assert table.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert "lm_head.weight" in table.optional
    assert made(of("gemma2", DENSE)).tied
    assert not made(of("llama", DENSE)).tied


def test_prediction_layers_are_optional_and_share_the_embedding() -> None:
    table = made(of("deepseek_v3", DENSE, ROUTED, LATENT, num_nextn_predict_layers=1))
    added = [n for n in table.logical if n.startswith("model.layers.3.")]
    assert len(added) > 30
    assert table.optional.issuperset(added)
    assert table.tied["model.layers.3.embed_tokens.weight"] == "model.embed_tokens.weight"
    assert table.tied["model.layers.3.shared_head.head.weight"] == "lm_head.weight"


def test_known_prefers_the_hubs_rows() -> None:
    table = made(of("qwen3_moe", DENSE, EXPERTS))
    known = table.known
    assert known["model.norm.weight"] is table.dialects["hf"]["model.norm.weight"]
    assert len(known["model.layers.0.mlp.experts.gate_up_proj"].layout.shape) == 3
    assert known.get("model.layers.9.mlp.gate.weight") is None
    assert set(known) == {name for rows in table.dialects.values() for name in rows}
    assert len(known) == len(set(known))


def test_large_tables_are_quick() -> None:
    big = of("deepseek_v3", DENSE, ROUTED, LATENT, num_hidden_layers=61, n_routed_experts=384)
    start = time.process_time()
    table = made(big)
    rows = list(table.dialects["hf"].values())
    spent = time.process_time() - start
    assert len(rows) > 69_000
    assert spent < 6, "several times what it takes on a slow core"


LAYER_TYPES = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "sliding"]}
BAD: list[tuple[dict[str, Any], str]] = [
    (of("llama", {**DENSE, "hidden_size": "24"}), "hidden_size is '24'"),
    (of("llama", {**DENSE, "hidden_size": -24}), "hidden_size is -24"),
    (of("llama", {**DENSE, "num_hidden_layers": 0}), "num_hidden_layers is 0"),
    (of("llama", {**DENSE, "num_key_value_heads": 3}), "num_attention_heads is 4.*= 3"),
    (of("llama", {**DENSE, "num_key_value_heads": 0}), "num_attention_heads is 4.*= 0"),
    (of("llama", {**DENSE, "head_dim": None, "hidden_size": 25}), "hidden_size is 25"),
    (of("llama", DENSE, attention_bias="yes"), "attention_bias is 'yes'"),
    (of("llama", {k: v for k, v in DENSE.items() if k != "vocab_size"}), "vocab_size"),
    (of("qwen3_moe", DENSE, EXPERTS, mlp_only_layers="1"), "mlp_only_layers is '1'"),
    (of("qwen3_moe", DENSE, EXPERTS, decoder_sparse_step=0), "decoder_sparse_step is 0"),
    (of("qwen3_moe", DENSE), "num_experts or num_local_experts"),
    (of("qwen3_5_text", DENSE, GDN, LAYER_TYPES), r"layer_types\[1\] is 'sliding'"),
    (of("qwen3_5_text", DENSE, GDN, layer_types=["full_attention"]), "1 entries.* is 4"),
    (of("qwen3_5_text", DENSE, GDN, linear_num_key_heads=5), "linear_num_value_heads is 6.*= 5"),
    (of("deepseek_v3", DENSE, ROUTED, LATENT, moe_layer_freq=2), "moe_layer_freq is 2"),
]


@pytest.mark.parametrize(("config", "message"), BAD)
def test_bad_configurations_name_the_field(config: dict[str, Any], message: str) -> None:
    with pytest.raises(FamilyError, match=message):
        table_for(config)


def test_unknown_families_have_no_table() -> None:
    assert table_for(None) is None
    assert table_for({}) is None
    assert table_for({"model_type": "gpt2"}) is None


def test_a_name_is_declared_once() -> None:
    table = Table("", of("llama", DENSE))
    at = Layer(table, "a.", "a.", "b.", (0, 1))
    at.tensor("w", 3, megatron="w")
    with pytest.raises(FamilyError, match=r"a\.w.*twice"):
        at.tensor("w", 3)
    with pytest.raises(FamilyError, match=r"b\.w.*twice"):
        at.tensor("v", 3, megatron="w")

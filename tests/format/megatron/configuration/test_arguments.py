"""Megatron's arguments and hub configurations, translated both ways and compared with each other."""

from __future__ import annotations

from typing import Any

import pytest

from intarsia.dtypes import BY_TORCH
from intarsia.errors import FamilyError
from intarsia.format.dcp.metadata import Metadata, TensorRecord
from intarsia.format.megatron.configuration.argument_facts import model_facts
from intarsia.format.megatron.configuration.argument_table import UNSAID
from intarsia.format.megatron.configuration.arguments_to_config import config_from_arguments
from intarsia.format.megatron.configuration.config_to_arguments import arguments_of_config
from intarsia.format.megatron.configuration.contradictions import check_arguments, disagreements
from intarsia.format.megatron.configuration.written_arguments import (
    arguments_for,
    arguments_of_words_lacking,
)
from intarsia.mesh import Mesh
from tests.family.configs import CASES, DENSE, EXPERTS, LATENT, ROUTED, of

PLAIN = {"decoder.layers.mlp.linear_fc1.weight": (2, 8, 4)}


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_for_a_configuration_agrees_with_it(case: str) -> None:
    config = CASES[case]
    assert not disagreements(arguments_for(config, Mesh(), PLAIN, False), config)


GPT_OSS = of("gpt_oss", DENSE, num_local_experts=3, num_experts_per_tok=2)
TRAINED_TO = {"original_max_position_embeddings": 8192}
MISTRAL = of("mistral", DENSE, sliding_window=None)
CHANGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (CASES["llama"], {"num_attention_heads": 8, "head_dim": 5}, "num_attention_heads"),
    (CASES["llama"], {"num_key_value_heads": 4}, "num_query_groups"),
    (CASES["llama"], {"rope_theta": 77.0}, "rotary_base"),
    (CASES["llama"], {"rms_norm_eps": 1e-3}, "norm_epsilon"),
    (CASES["llama"], {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
    (CASES["llama"], {"rope_parameters": {"rope_type": "llama3", "factor": 8.0} | TRAINED_TO}, "rope_scaling"),
    (CASES["llama"], {"rope_parameters": {"rope_type": "yarn", "factor": 8.0}}, "rope_scaling"),
    (CASES["llama"], {"vocab_size": 49}, "vocab_size"),
    (CASES["llama"], {"hidden_act": "gelu_pytorch_tanh"}, "activation"),
    (CASES["glm4_moe"], {"partial_rotary_factor": 0.25}, "rotary_percent"),
    (CASES["glm4_moe"], {"routed_scaling_factor": 3.0}, "moe_router_topk_scaling_factor"),
    (CASES["glm4_moe"], {"n_group": 4}, "moe_router_num_groups"),
    (CASES["qwen3_moe"], {"num_experts_per_tok": 1}, "moe_router_topk"),
    (CASES["qwen3_moe"], {"norm_topk_prob": True}, "moe_router_pre_softmax"),
    (CASES["qwen3_next"], {"linear_num_key_heads": 1, "linear_key_head_dim": 12}, "linear_num_key_heads"),
    (CASES["deepseek_v3"], {"qk_rope_head_dim": 6, "qk_nope_head_dim": 6}, "qk_head_dim"),
    (CASES["deepseek_v3"], {"rope_scaling": {"type": "yarn", "factor": 40.0}}, "rope_scaling"),
    (CASES["smollm3"], {"no_rope_layer_interval": 2}, "no_rope_layers"),
    (GPT_OSS, {"sliding_window": 64}, "window"),
    (GPT_OSS, {"layer_types": ["full_attention"] * 3}, "window"),
    (GPT_OSS, {"swiglu_limit": 5.0}, "activation_func_clamp_value"),
    (MISTRAL, {"sliding_window": 32}, "window"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "change", "argument"), CHANGES, ids=lambda x: str(x)[:40])
def test_a_fact_with_two_values(config: Any, change: Any, argument: str) -> None:
    args = arguments_for(config, Mesh(), PLAIN, False)
    found = {c.field for c in disagreements(args, config | change)}
    assert argument in found
    with pytest.raises(FamilyError, match=argument):
        check_arguments(args, config | change, PLAIN, "here")
    args = arguments_for(config | change, Mesh(), PLAIN, False)
    if argument not in ("vocab_size", "activation"):
        assert argument in {c.field for c in disagreements(args, config)}


def test_defaults_that_the_tensors_disprove_are_noted() -> None:
    """A script stores the parser's defaults beside a model that it built otherwise."""
    config = CASES["qwen3"]
    args = {
        "num_attention_heads": 4,
        "rotary_base": 10000,
        "layernorm_epsilon": 1e-5,
        "qk_layernorm": False,
    }
    shapes = PLAIN | {"decoder.layers.self_attention.q_layernorm.weight": (2, 10)}
    (note,) = check_arguments(args, config, shapes, "here")
    assert "qk_layernorm=False" in note
    assert "norm_epsilon is 1e-05, rms_norm_eps in the configuration gives 1e-06" in note
    with pytest.raises(FamilyError, match="norm_epsilon is 1e-05"):
        check_arguments(args, config, PLAIN, "here")
    with pytest.raises(FamilyError, match="rotary_base is 77"):
        check_arguments(args | {"rotary_base": 77}, config, shapes, "here")


def test_what_arguments_cannot_say_is_listed() -> None:
    assert {
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "hidden_act",
    } <= arguments_of_config(CASES["gemma2"]).unsaid.keys()
    assert (
        "embedding_multiplier"
        in arguments_of_config(of("granite", DENSE, embedding_multiplier=12.0)).unsaid
    )
    longrope = of(
        "phi3",
        DENSE,
        rope_scaling={"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
    )
    assert "rope_parameters" in arguments_of_config(longrope).unsaid
    endless = of("llama", DENSE, rope_scaling={"type": "linear", "factor": float("inf")})
    assert "rope_parameters" in arguments_of_config(endless).unsaid
    assert (
        "norm_topk_prob"
        in arguments_of_config(
            of("deepseek_v3", DENSE, ROUTED, LATENT, norm_topk_prob=False)
        ).unsaid
    )
    assert not arguments_of_config(CASES["qwen3_moe"]).unsaid


@pytest.mark.parametrize(
    ("said", "scaled"),
    [
        ({}, False),
        ({"rotary_scaling_factor": 40.0}, False),
        ({"mscale_all_dim": 1.0, "rotary_scaling_factor": 1.0}, False),
        ({"mscale_all_dim": 1.0, "rotary_scaling_factor": 40.0}, True),
    ],
)
def test_latent_attention_whose_softmax_alone_is_scaled_is_no_plain_rotation(
    said: dict[str, float], scaled: bool
) -> None:
    """Megatron takes the factor of a yarn rotation for the softmax, whatever the rotation is."""
    config = CASES["deepseek_v3"]
    args = arguments_of_config(config).args
    assert args["rope_type"] == "rope"
    found = [c.field for c in disagreements(args | said, config)]
    assert found == (["rope_scaling"] if scaled else [])


@pytest.mark.parametrize("chosen", [1, 2])
@pytest.mark.parametrize("normed", [False, True])
def test_megatron_divides_sigmoid_scores_by_their_sum_where_more_than_one_expert_is_chosen(
    chosen: int, normed: bool
) -> None:
    ungrouped = CASES["glm4_moe"] | {"n_group": 1, "topk_group": 1}
    config = ungrouped | {"num_experts_per_tok": chosen, "norm_topk_prob": normed}
    said = arguments_of_config(config)
    assert said.unsaid == ({"norm_topk_prob": normed} if normed != (chosen > 1) else {})
    assert not disagreements(said.args | {UNSAID: said.unsaid}, config)
    trained = arguments_of_config(config | {"norm_topk_prob": chosen > 1}).args
    found = [(c.field, c.first, c.second) for c in disagreements(trained, config)]
    assert found == ([("norm_topk_prob", chosen > 1, normed)] if normed != (chosen > 1) else [])


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({}, True),
        ({"mscale": 1.0}, True),
        ({"mscale": 0.7, "mscale_all_dim": 1.0}, True),
        ({"mscale": 0.7}, False),
        ({"mscale_all_dim": 0.7}, False),
        ({"attention_factor": 1.3}, False),
        ({"truncate": False}, False),
    ],
)
def test_a_latent_yarn_that_megatron_scales_otherwise_is_listed(
    rope: dict[str, Any], said: bool
) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    config = of("deepseek_v3", DENSE, ROUTED, LATENT, rope_parameters=yarn | rope)
    assert ("rope_parameters" not in arguments_of_config(config).unsaid) == said
    assert not disagreements(arguments_for(config, Mesh(), PLAIN, False), config)
    trained = {"multi_latent_attention": True, "rope_type": "yarn", "rotary_scaling_factor": 4.0}
    fields = {c.field for c in disagreements(trained | rope, config)}
    if not said:
        assert "rope_scaling" in fields


@pytest.mark.parametrize(
    "rope", [{"beta_fast": 16.0}, {"beta_slow": 2.0}, {"original_max_position_embeddings": 16}]
)
def test_numbers_of_a_latent_yarn_that_megatron_has_no_option_for_are_listed(
    rope: dict[str, Any],
) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    config = of("deepseek_v3", DENSE, ROUTED, LATENT, rope_parameters=yarn | rope)
    assert arguments_of_config(config).unsaid.keys() == {"rope_parameters"}
    assert not disagreements(arguments_for(config, Mesh(), PLAIN, False), config)
    trained = {"multi_latent_attention": True, "rope_type": "yarn", "rotary_scaling_factor": 4.0}
    assert {c.field for c in disagreements(trained, config)} == {"rope_scaling"}


PARSED = {
    "position_embedding_type": "yarn", "rotary_scaling_factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.0,
    "yarn_original_max_position_embeddings": 16, "yarn_beta_fast": None, "yarn_beta_slow": None,
    "yarn_correction_range_round_to_int": None,
}  # fmt: skip
"""As the parser of Megatron-LM 0.19 stores a yarn rotation."""


@pytest.mark.parametrize(
    ("args", "rope", "same"),
    [
        ({}, {}, True),
        ({}, {"mscale": 0.7}, True),
        ({}, {"mscale": 0.7, "mscale_all_dim": 0.0}, True),
        ({}, {"beta_fast": 32.0, "truncate": True}, True),
        ({"mscale": 0.7, "mscale_all_dim": 1.0}, {"mscale": 0.7, "mscale_all_dim": 1.0}, True),
        ({"mscale": 0.7}, {"mscale": 0.7}, False),
        ({"mscale": 0.7}, {}, False),
        ({"rotary_scaling_factor": 8.0}, {}, False),
        ({"yarn_original_max_position_embeddings": None}, {}, False),
        ({"yarn_beta_slow": 2.0}, {}, False),
        ({"yarn_correction_range_round_to_int": False}, {"truncate": False}, True),
    ],
)
def test_a_yarn_rotation_is_read_as_megatrons_parser_stores_it(
    args: dict[str, Any], rope: dict[str, Any], same: bool
) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    config = CASES["llama"] | {"rope_parameters": yarn | rope}
    assert ("rope_scaling" not in {c.field for c in disagreements(PARSED | args, config)}) == same
    assert not disagreements(arguments_for(config, Mesh(), PLAIN, False), config)


def test_a_scale_of_attention_is_listed_unless_it_is_the_usual_one() -> None:
    for unusual in ({}, {"attention_multiplier": 1.0}, {"attention_multiplier": 0.3}):
        found = arguments_of_config(of("granite", DENSE, **unusual)).unsaid
        assert found == {"attention_multiplier": unusual.get("attention_multiplier", 1.0)}
    usual = CASES["granite"]["head_dim"] ** -0.5
    assert not arguments_of_config(of("granite", DENSE, attention_multiplier=usual)).unsaid


def test_a_factor_that_megatrons_scripts_ignore_is_listed_and_in_doubt() -> None:
    """They build a model for `--use-rope-scaling` with a factor of 8, whatever the argument says."""

    def by(factor: float) -> dict[str, Any]:
        rope = {"rope_type": "llama3", "factor": factor} | TRAINED_TO
        return CASES["llama"] | {"rope_parameters": rope}

    assert not arguments_of_config(by(8.0)).unsaid
    assert arguments_of_config(by(32.0)).unsaid.keys() == {"rope_parameters"}
    parsed = {
        "position_embedding_type": "rope",
        "use_rope_scaling": True,
        "rope_scaling_factor": 32.0,
    }
    bridge = {"position_embedding_type": "rope", "rope_scaling": True, "rope_scaling_factor": 32.0}
    for args, factor, same in (
        (parsed, 32.0, True), (parsed, 8.0, True), (parsed, 16.0, False),
        (bridge, 32.0, True), (bridge, 8.0, False),
    ):  # fmt: skip
        assert ("rope_scaling" not in {c.field for c in disagreements(args, by(factor))}) == same
    assert not disagreements(arguments_for(by(32.0), Mesh(), PLAIN, False), by(32.0))


def test_a_stretched_rotation_is_in_doubt_by_the_argument_that_megatron_may_ignore() -> None:
    """Megatron-LM up to 0.18 builds its model without it; Bridge's own field is used."""
    default = CASES["llama"]
    linear = default | {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}
    assert arguments_of_config(linear).unsaid.keys() == {"rope_parameters"}
    parsed = {"position_embedding_type": "rope", "rotary_seq_len_interpolation_factor": 4}
    assert not disagreements(parsed, linear)
    assert not disagreements(parsed, default)
    bridge = {"position_embedding_type": "rope", "seq_len_interpolation_factor": 4}
    assert not disagreements(bridge, linear)
    assert {c.field for c in disagreements(bridge, default)} == {"rope_scaling"}
    for args in (parsed, bridge):
        eight = linear | {"rope_parameters": {"rope_type": "linear", "factor": 8.0}}
        assert {c.field for c in disagreements(args, eight)} == {"rope_scaling"}


def test_groups_that_megatron_ranks_by_other_scores_are_listed() -> None:
    """Transformers takes the two best of a group, Megatron as many as `topk // group_topk`."""
    config = CASES["glm4_moe"] | {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}
    other = config | {"num_experts_per_tok": 6}
    assert not arguments_of_config(config).unsaid
    assert arguments_of_config(other).unsaid == {"n_group": 4}
    written = arguments_for(other, Mesh(), PLAIN, False)
    assert not disagreements(written, other)
    (found,) = disagreements({k: v for k, v in written.items() if "only" not in k}, other)
    assert (found.field, found.first) == ("moe_router_num_groups", 4)


def test_a_field_that_the_model_passes_over_is_neither_written_nor_listed() -> None:
    """Transformers reads of a configuration what the files of its family do."""
    stray = {
        "sliding_window": 5, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "hidden_activation": "gelu", "logits_scaling": 3.0, "query_pre_attn_scalar": 3.0, "num_experts": 0,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 2, 2], "llama_4_scaling_beta": 0.1},
    }  # fmt: skip
    llama, plain = arguments_of_config(CASES["llama"] | stray), arguments_of_config(CASES["llama"])
    assert (llama.args, llama.unsaid) == (plain.args, plain.unsaid)
    mixtral = arguments_of_config(CASES["mixtral"] | {"norm_topk_prob": False})
    assert mixtral.args["moe_router_pre_softmax"] is False


@pytest.mark.parametrize(
    ("case", "given", "meant"),
    [
        ("gemma", {"hidden_act": "gelu", "hidden_activation": "relu"}, "gelu_pytorch_tanh"),
        ("gemma2", {"hidden_act": "relu"}, "gelu_pytorch_tanh"),
        ("gemma3_text", {"hidden_activation": "relu", "hidden_act": "gelu"}, "relu"),
    ],
)
def test_the_activation_of_gemma_is_what_transformers_takes(
    case: str, given: dict[str, str], meant: str
) -> None:
    assert arguments_of_config(CASES[case] | given).unsaid["hidden_act"] == meant


def test_an_activation_and_a_rotation_of_two_names() -> None:
    swish = arguments_of_config(CASES["llama"] | {"hidden_act": "swish"})
    assert (swish.args["swiglu"], swish.unsaid) == (True, {})
    factors = {"short_factor": [1.0] * 5, "long_factor": [2.0] * 5}
    older, newer = (
        arguments_of_config(of("phi3", DENSE, rope_scaling={"type": name} | factors))
        for name in ("yarn", "longrope")
    )
    assert (older.args, older.unsaid) == (newer.args, newer.unsaid)
    assert older.args["position_embedding_type"] == "rope"
    assert older.unsaid["rope_parameters"]["original_max_position_embeddings"] == 4096
    given = {"original_max_position_embeddings": 16, "rope_scaling": {"type": "longrope"} | factors}
    rope = arguments_of_config(of("phi3", DENSE, given)).unsaid["rope_parameters"]
    assert rope["original_max_position_embeddings"] == 16


def test_attention_that_looks_ahead_is_listed() -> None:
    for case in ("llama", "qwen3_moe", "gpt_oss", "deepseek_v3"):
        for said in (False, None):
            unsaid = arguments_of_config(CASES[case] | {"is_causal": said}).unsaid
            assert unsaid["is_causal"] is False
        assert "is_causal" not in arguments_of_config(CASES[case] | {"is_causal": True}).unsaid


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss"])
def test_a_single_expert_whose_score_is_made_one_is_listed(family: str) -> None:
    """Megatron has no softmax over one score; `--moe-router-pre-softmax` is another."""
    config = CASES[family] | {"norm_topk_prob": True}
    assert not arguments_of_config(config).unsaid
    one = arguments_of_config(config | {"num_experts_per_tok": 1})
    assert (one.unsaid, one.args["moe_router_pre_softmax"]) == ({"norm_topk_prob": True}, False)
    own = CASES["qwen3_moe"] | {"num_experts_per_tok": 1, "norm_topk_prob": False}
    assert not arguments_of_config(own).unsaid


@pytest.mark.parametrize("case", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite"])
def test_the_epsilon_of_the_norms_of_latents_is_listed_unless_it_is_that_of_the_others(
    case: str,
) -> None:
    for epsilon, same in ((1e-6, True), (1e-5, False)):
        unsaid = arguments_of_config(CASES[case] | {"rms_norm_eps": epsilon}).unsaid
        assert ("the epsilon of the norms of latents" not in unsaid) == same


@pytest.mark.parametrize(
    ("case", "rope_type", "said"),
    [
        ("glm4_moe", "default", True),
        ("glm4_moe", "yarn", False),
        ("qwen3_next", "yarn", False),
        ("glm4_moe_lite", "default", False),
        ("ernie4_5", "yarn", False),
    ],
)
def test_a_part_of_a_head_that_megatron_would_rotate_whole_is_listed(
    case: str, rope_type: str, said: bool
) -> None:
    rope = {"rope_type": rope_type, "factor": 4.0, "original_max_position_embeddings": 16}
    config = CASES[case] | {"rope_parameters": rope | {"partial_rotary_factor": 0.5}}
    assert ("rope_parameters" not in arguments_of_config(config).unsaid) == said
    assert not disagreements(arguments_for(config, Mesh(), PLAIN, False), config)


def test_a_rotation_is_scaled_from_the_length_of_the_model_where_it_says_none() -> None:
    """As Transformers scales it; Megatron-LM has 8192 and 4096 built in."""
    short, long = CASES["llama"], CASES["llama"] | {"max_position_embeddings": 8192}
    llama3 = {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}
    assert arguments_of_config(short | llama3).unsaid.keys() == {"rope_parameters"}
    assert not arguments_of_config(long | llama3).unsaid
    yarn = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}
    assert arguments_of_config(short | yarn).args["yarn_original_max_position_embeddings"] == 64
    latent = arguments_of_config(CASES["deepseek_v3"] | yarn).args
    assert latent["original_max_position_embeddings"] == 64
    null = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16}
    said = arguments_of_config(short | {"rope_parameters": null})
    assert said.args["yarn_rotary_scaling_factor"] == 4.0


def test_what_a_run_computes_otherwise_than_the_hub_is_noted() -> None:
    def notes(case: str, **changes: Any) -> list[str]:
        args = arguments_of_config(CASES[case] | {"rms_norm_eps": 1e-6}).args | changes
        return check_arguments(
            args, CASES[case] | {"rms_norm_eps": args["norm_epsilon"]}, PLAIN, "here"
        )

    assert not notes("deepseek_v3")
    (note,) = notes("deepseek_v3", norm_epsilon=1e-5)
    assert "norm_epsilon=1e-05" in note
    assert "1e-06" in note
    (note,) = notes("mixtral", moe_expert_capacity_factor=1.0)
    assert "moe_expert_capacity_factor=1.0" in note
    assert not notes("mixtral", moe_expert_capacity_factor=-1.0)
    assert not notes("llama", moe_expert_capacity_factor=1.0, norm_epsilon=1e-5)
    config = CASES["deepseek_v3"] | {"rms_norm_eps": 1e-5}
    of_the_hub = arguments_for(config, Mesh(), PLAIN, False)
    assert not check_arguments(of_the_hub, config, PLAIN, "here")


def test_a_run_of_its_own_keeps_its_one_epsilon_whatever_the_hub_computes() -> None:
    config = CASES["deepseek_v3"] | {"rms_norm_eps": 1e-5, "norm_topk_prob": False}
    run = arguments_of_config(config).args
    assert arguments_of_words_lacking(config, run) == {UNSAID: {"norm_topk_prob": False}}
    kept = run | arguments_of_words_lacking(config, run)
    assert not disagreements(kept, config)
    assert len(check_arguments(kept, config, PLAIN, "here")) == 1
    of_the_hub = run | arguments_of_words_lacking(config)
    assert arguments_of_words_lacking(config, of_the_hub) == arguments_of_words_lacking(config)


def test_what_a_configuration_says_is_written() -> None:
    said = arguments_of_config(
        CASES["glm4_moe"] | {"rope_parameters": {"partial_rotary_factor": 0.5}}
    ).args
    assert said["rotary_percent"] == 0.5
    assert said["moe_router_score_function"] == "sigmoid"
    assert said["moe_layer_freq"] == [0, 1, 1]
    assert arguments_of_config(CASES["gemma3_text"]).args["swiglu"] is False
    assert arguments_of_config(CASES["ernie4_5"]).args["rotary_interleaved"] is True
    assert arguments_of_config(of("smollm3", DENSE, no_rope_layers=[1, 0, 1])).args[
        "no_rope_freq"
    ] == [0, 1, 0]
    assert (
        arguments_of_config(of("qwen3_moe", DENSE, EXPERTS)).args["moe_router_pre_softmax"] is True
    )
    oss = arguments_of_config(GPT_OSS).args
    assert (oss["window_size"], oss["window_attn_skip_freq"]) == ((127, 0), [1, 0, 1])
    assert (oss["swiglu"], oss["quick_geglu"], oss["position_embedding_type"]) == (
        False,
        True,
        "yarn",
    )


def test_bridges_spellings_are_the_same_facts() -> None:
    bridge = {"num_moe_experts": 3, "gated_linear_unit": True, "num_layers": 3,
              "activation_func": "torch.nn.functional.silu", "layernorm_epsilon": 1e-6,
              "window_size": [15, 0], "window_attn_skip_freq": 2}  # fmt: skip
    found = model_facts(bridge)
    assert (found["num_experts"], found["activation"], found["norm_epsilon"]) == (3, "swiglu", 1e-6)
    assert found["window"] == (15, 0, (True, False, True))


@pytest.mark.parametrize("args", [
    {"softmax_scale": None, "kv_channels": 0}, {"softmax_scale": None, "kv_channels": "a"},
    {"num_layers": 2, "no_rope_freq": 0}, {"num_layers": 1 << 60, "no_rope_freq": 3},
    {"num_layers": 2, "window_size": (3, 0), "window_attn_skip_freq": 0},
    {"multi_latent_attention": True, "rope_scaling": True},
], ids=str)  # fmt: skip
def test_arguments_that_say_nothing_of_a_model_are_no_facts(args: dict[str, Any]) -> None:
    found = model_facts(args)
    assert not {"softmax_scale", "rope_scaling"} & found.keys()
    assert found.get("no_rope_layers", ()) == ()
    assert found.get("window", ()) in ((), (3, 0, ()))


@pytest.mark.parametrize("scale", [
    {"query_pre_attn_scalar": "a"}, {"query_pre_attn_scalar": -4}, {"attention_multiplier": [1]},
], ids=str)  # fmt: skip
def test_a_scale_of_another_form_is_not_compared(scale: dict[str, Any]) -> None:
    args = arguments_for(CASES["llama"], Mesh(), PLAIN, False) | {"softmax_scale": None}
    assert not disagreements(args, CASES["llama"] | scale)


def test_a_number_of_layers_that_no_model_has_is_refused_at_once() -> None:
    with pytest.raises(FamilyError, match="2,147,483,648 layers, no model has more than 10,000"):
        arguments_of_config(CASES["llama"] | {"num_hidden_layers": 1 << 31})


def test_a_vocabulary_that_is_larger_than_the_embedding_is_left_out_of_a_configuration_and_told() -> (
    None
):
    shapes = {
        "embedding.word_embeddings.weight": (16, 8),
        "decoder.layers.self_attention.linear_qkv.weight": (2, 16, 8),
        "decoder.layers.self_attention.linear_proj.weight": (2, 8, 8),
        "decoder.layers.mlp.linear_fc1.weight": (2, 24, 8),
        "decoder.layers.mlp.linear_fc2.weight": (2, 8, 12),
    }
    metadata = Metadata(
        {
            name: TensorRecord(name, BY_TORCH["bfloat16"], shape, ())
            for name, shape in shapes.items()
        },
        {},
    )
    made = config_from_arguments({"num_attention_heads": 2, "vocab_size": 99}, metadata)
    assert made.config is not None
    assert made.config["vocab_size"] == 16
    assert "vocab_size=99" in made.unsaid

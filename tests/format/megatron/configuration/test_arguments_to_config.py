"""Which hub family a Megatron checkpoint without a configuration is of: tensors and arguments must both say it."""

from __future__ import annotations

from typing import Any

import pytest

from intarsia.dtypes import BY_TORCH
from intarsia.family import table_for
from intarsia.format.dcp.metadata import Metadata, TensorRecord
from intarsia.format.megatron.configuration.arguments_to_config import config_from_arguments
from intarsia.format.megatron.configuration.config_to_arguments import arguments_of_config
from intarsia.format.megatron.configuration.contradictions import disagreements
from intarsia.format.megatron.keys import torch_dist_rows
from tests.family.configs import CASES

DEEPSEEK = CASES["deepseek_v3"] | {"num_hidden_layers": 4}


def stored(config: dict[str, Any], *without: str, spec: str = "te") -> Metadata:
    """The tensors of a model as Megatron stores them, but for those that have one of these words."""
    table = table_for(config)
    assert table is not None
    shapes = {row.name: row.layout.shape for row in torch_dist_rows(table, spec)}
    kept = {n: s for n, s in shapes.items() if not any(word in n for word in without)}
    bf16 = BY_TORCH["bfloat16"]
    return Metadata({n: TensorRecord(n, bf16, shape, ()) for n, shape in kept.items()}, {})


def family(metadata: Metadata, args: dict[str, Any]) -> str | None:
    made = config_from_arguments(args, metadata).config
    return None if made is None else made["model_type"]


def arguments(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return arguments_of_config(config).args | {"qk_layernorm": True} | changes


@pytest.mark.parametrize(
    ("word", "argument"),
    [("expert_bias", "moe_router_enable_expert_bias"), ("up_proj.layer_norm", "qk_layernorm")],
)
def test_latent_attention_without_what_deepseek_v3_has_is_another_model(
    word: str, argument: str
) -> None:
    said = arguments(DEEPSEEK)
    assert family(stored(DEEPSEEK), said) == "deepseek_v3"
    assert family(stored(DEEPSEEK, word), said | {argument: False}) is None
    # Arguments that have it tell that the tensors are lost.
    assert family(stored(DEEPSEEK, word), said) == "deepseek_v3"


def test_dense_layers_among_those_with_experts_are_no_deepseeks() -> None:
    said = arguments(DEEPSEEK)
    assert said["moe_layer_freq"] == [0, 1, 1, 1]
    mixed = [0, 1, 0, 1]
    without = stored(DEEPSEEK, "layers.2.mlp.router", "layers.2.mlp.experts")
    assert family(without, said | {"moe_layer_freq": mixed}) is None
    assert family(without, said) == "deepseek_v3"


@pytest.mark.parametrize("spec", ["te", "local"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_layers_that_predict_further_tokens_are_deepseeks(count: int, spec: str) -> None:
    config = DEEPSEEK | {"num_nextn_predict_layers": count}
    made = config_from_arguments(arguments(config), stored(config, spec=spec))
    assert made.config is not None
    assert not made.unsaid
    assert made.config["num_nextn_predict_layers"] == count
    assert (made.config["num_hidden_layers"], made.config["first_k_dense_replace"]) == (4, 1)


@pytest.mark.parametrize("gated", [False, True])
def test_a_model_that_no_configuration_expresses_is_not_said_to_be_of_the_family(
    gated: bool,
) -> None:
    config = CASES["qwen3"]
    said = arguments(config, attention_output_gate=gated)
    made = config_from_arguments(said, stored(config))
    assert made.unsaid == (("attention_output_gate=True",) if gated else ())
    (note,) = (note for note in made.notes if "a qwen3 with 4 heads" in note)
    assert note.startswith("config.json is made") != gated
    assert ("have attention_output_gate=True" in note) == gated


@pytest.mark.parametrize("chosen", [1, 2])
def test_the_score_of_a_single_expert_is_not_made_one(chosen: int) -> None:
    """Megatron divides sigmoid scores by their sum where it chooses more than one expert."""
    made = config_from_arguments(
        arguments(DEEPSEEK | {"num_experts_per_tok": chosen}), stored(DEEPSEEK)
    )
    assert made.config is not None
    assert made.config["norm_topk_prob"] is (chosen == 2)


def test_layers_that_predict_further_tokens_are_no_other_familys() -> None:
    config = CASES["qwen3"]
    ahead = TensorRecord("mtp.layers.0.enorm.weight", BY_TORCH["bfloat16"], (8,), ())
    metadata = stored(config)
    made = config_from_arguments(
        arguments(config), Metadata(metadata.tensors | {ahead.name: ahead}, {})
    )
    assert made.config is None
    assert made.notes == ("not a qwen3, which has no mtp.layers.0.enorm.weight",)


def test_shared_experts_that_are_no_whole_number_of_experts_are_no_deepseeks() -> None:
    metadata = stored(DEEPSEEK | {"n_shared_experts": 3})
    wider = DEEPSEEK | {
        "n_shared_experts": 2,
        "moe_intermediate_size": DEEPSEEK["moe_intermediate_size"] * 2,
    }
    apart = {n: t for n, t in stored(wider).tensors.items() if ".experts.experts." in n}
    assert family(metadata, arguments(DEEPSEEK | {"n_shared_experts": 3})) == "deepseek_v3"
    assert family(Metadata(metadata.tensors | apart, {}), arguments(wider)) is None


@pytest.mark.parametrize("spec", ["te", "local"])
@pytest.mark.parametrize(
    ("said", "dense"),
    [
        ({"mlp_only_layers": [1]}, [1]),
        ({"decoder_sparse_step": 2}, [0, 2]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [0, 2, 3]),
    ],
)
def test_dense_layers_among_those_with_experts_are_a_qwens(
    said: dict[str, Any], dense: list[int], spec: str
) -> None:
    config = CASES["qwen3_moe"] | {"num_hidden_layers": 4} | said
    made = config_from_arguments(arguments(config), stored(config, spec=spec))
    assert made.config is not None
    assert not made.unsaid
    assert made.config["model_type"] == "qwen3_moe"
    assert (made.config["mlp_only_layers"], made.config["decoder_sparse_step"]) == (dense, 1)
    ours, theirs = table_for(made.config), table_for(config)
    assert ours is not None
    assert theirs is not None
    assert ours.logical == theirs.logical


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("moe_mlp_glu_interleave_size", 32),
        ("moe_shared_expert_glu_interleave_size", 32),
        ("mtp_use_repeated_layer", True),
        ("heterogeneous_layers_config_encoded_json", "{}"),
    ],
)
def test_tensors_that_are_not_what_their_names_say_are_no_familys(
    argument: str, value: object
) -> None:
    config = CASES["qwen3_moe"]
    assert family(stored(config), arguments(config)) == "qwen3_moe"
    assert family(stored(config), arguments(config, **{argument: value})) is None


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("apply_residual_connection_post_layernorm", True),
        ("use_mup", True),
        ("moe_mlp_glu_interleave_size", 32),
        ("moe_shared_expert_glu_interleave_size", 32),
        ("moe_router_topk_limited_devices", 2),
        ("moe_router_load_balancing_type", "sinkhorn"),
    ],
)
def test_what_changes_the_model_and_no_configuration_says_contradicts_each(
    argument: str, value: object
) -> None:
    config = CASES["qwen3_moe"]
    found = disagreements(arguments(config, **{argument: value}), config)
    assert [c.field for c in found] == [argument]
    neutral = "aux_loss" if isinstance(value, str) else False if value is True else None
    assert not disagreements(arguments(config, **{argument: neutral}), config)

"""What the modelling files of the installed Transformers read of a configuration, and what we take from it for Megatron."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from intarsia.errors import FamilyError
from intarsia.family import model_types, table_for
from intarsia.family.config.fields import text_config
from intarsia.family.config.heeded import ALWAYS, heeded_fields, text_type
from intarsia.family.config.meaning import spelling
from intarsia.format.megatron.configuration.config_to_arguments import arguments_of_config
from intarsia.format.megatron.configuration.layer_kinds import LATENT
from tests.family.configs import CASES, Config

MODELS = Path(transformers.__file__).parent / "models"
FAMILIES = sorted({text_type({"model_type": name}) for name in model_types()} - {"kimi_k2"})
"""The types of text models; the code of Kimi K2 is DeepSeek's."""

CHANGES_NOTHING = {
    "_sliding_window_pattern", "_attn_implementation", "attention_dropout", "dtype", "eos_token_id", "image_token_id", "initializer_range",
    "output_router_logits", "pad_token_id", "resid_pdrop", "residual_dropout", "router_aux_loss_coef",
    "router_jitter_noise", "torch_dtype", "video_token_id",
}  # fmt: skip
"""Read by modelling files, and without effect on what a model computes of a prompt's tokens."""

OF_A_WRAPPER = {
    "mm_tokens_per_image", "multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size",
    "sub_configs_defaults", "text_config", "vision_config", "vision_feature_layer",
}  # fmt: skip
"""Fields of a vision-language model that its text model does not see."""

OF_THE_ROTATION = {
    "default_theta", "partial_rotary_factor", "rope_local_base_freq", "rope_scaling", "rope_theta",
    "standardize_rope_params",
}  # fmt: skip
"""What `rope_parameters` is made of."""

METHODS = {"get_text_config"}
UNUSED = {"qwen3_vl_text": {"layer_types"}}
"""Read, and kept in an attribute that nothing reads."""


def read_by_modelling(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("config" | "text_config"), name):
                yield name
            case ast.Attribute(ast.Attribute(attr="config" | "text_config"), name):
                yield name
            case ast.Call(ast.Name("getattr" | "hasattr"), [of, ast.Constant(str(name)), *_]):
                if "config" in ast.unparse(of):
                    yield name


def read_by_configuration(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name) if name.startswith("validate"):
                node.body = []
            case ast.Attribute(ast.Name("self"), name, ast.Load()):
                yield name
            case ast.Call(ast.Attribute(ast.Name("kwargs")), [ast.Constant(str(name)), *_]):
                yield name


@cache
def fields_read(family: str) -> frozenset[str]:
    """The fields that decide what a model computes, in our spelling; a vision tower has a configuration of its own."""
    name = family.removesuffix("_text")
    found: set[str] = set()
    for kind, read in (
        ("modeling", read_by_modelling), ("configuration", read_by_configuration),
    ):  # fmt: skip
        tree = ast.parse((MODELS / name / f"{kind}_{name}.py").read_text())
        for part in tree.body:
            if "Vision" not in getattr(part, "name", ""):
                found.update(read(part))
    beside = (
        CHANGES_NOTHING
        | OF_A_WRAPPER
        | OF_THE_ROTATION
        | METHODS
        | UNUSED.get(family, set())
        | {"config"}
    )
    return frozenset(spelling(name) for name in found - beside)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_that_is_read_is_known_and_no_other(family: str) -> None:
    heeded, read = heeded_fields(family), fields_read(family)
    assert heeded is not None
    assert read <= heeded
    assert heeded <= read | ALWAYS


NEEDED: Config = {
    "layer_types": {"sliding_window": 9, "use_sliding_window": True},
    "max_window_layers": {"max_window_layers": 3, "use_sliding_window": True},
    "n_group": {"topk_method": "group_limited_greedy"},
    "original_max_position_embeddings": {
        "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
    },
    "sliding_window": {
        "max_window_layers": 1,
        "no_rope_layers": [0, 1, 0],
        "use_sliding_window": True,
    },
    "topk_group": {"n_group": 4, "topk_group": 1},
    "use_sliding_window": {
        "max_window_layers": 1,
        "sliding_window": 9,
        "no_rope_layers": [0, 1, 0],
    },
}
"""What has to be given for a field to have any effect."""

CHANGED: Config = {
    "attention_bias": (True, False), "attention_multiplier": 0.3,
    "attention_out_bias": (True, False), "attn_logit_softcapping": 7.0, "clip_qkv": 1.0, "decoder_sparse_step": 2,
    "embedding_multiplier": 3.0, "final_logit_softcapping": 7.0, "first_k_dense_replace": 2,
    "full_attention_interval": 2, "head_dim": 14, "hidden_act": "relu", "hidden_size": 48, "intermediate_size": 40,
    "is_causal": False, "kv_lora_rank": 20,
    "layer_types": (["full_attention", "sliding_attention"] * 4, ["full_attention", "linear_attention"] * 4),
    "linear_conv_kernel_dim": 3, "linear_key_head_dim": 10, "linear_num_key_heads": 3,
    "linear_num_value_heads": 12, "linear_value_head_dim": 10, "logits_scaling": 3.0,
    "max_position_embeddings": 32, "max_window_layers": 1, "mlp_bias": (True, False),
    "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"], "mlp_only_layers": [0],
    "moe_intermediate_size": 18, "n_group": 4, "n_shared_experts": 3, "no_rope_layer_interval": 2,
    "no_rope_layers": [0, 1, 1, 0], "norm_topk_prob": (True, False), "num_attention_heads": 8, "num_experts": 8,
    "num_experts_per_tok": 1, "num_hidden_layers": 5, "num_key_value_heads": 1,
    "original_max_position_embeddings": 16, "q_lora_rank": 20,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 6, "qkv_bias": False, "query_pre_attn_scalar": 3.0,
    "residual_multiplier": 0.5, "rms_norm_eps": 0.1, "rope_interleave": False,
    "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "routed_scaling_factor": 1.7,
    "shared_expert_intermediate_size": 26, "sliding_window": 5, "sliding_window_pattern": 2, "swiglu_alpha": 1.0,
    "swiglu_limit": 1.0, "tie_word_embeddings": (True, False), "topk_group": 2,
    "topk_method": "group_limited_greedy", "use_bias": (True, False), "use_bidirectional_attention": True,
    "use_qk_norm": (True, False), "use_sliding_window": True, "v_head_dim": 9, "vocab_size": 60,
}  # fmt: skip
"""An uncommon value of each field; of a tuple of several, one has to make a difference."""

WITHOUT_EFFECT = {
    **{(family, "head_dim"): "latent heads have widths of their own" for family in LATENT},
    **{(family, "num_key_value_heads"): "latent heads have a key each" for family in LATENT},
    ("deepseek_v2", "mlp_bias"): "its biases are refused as tensors that the table does not have",
    ("deepseek_v2", "n_group"): "listed with `topk_method`, without which it is not heeded",
    ("deepseek_v2", "topk_group"): "the same",
    ("olmoe", "sliding_window"): "handed to the kernel, whose mask is that of full attention",
    ("gpt_oss", "hidden_act"): "gpt-oss has one activation",
}


BY_FAMILY = {text_type(config): config for config in reversed(CASES.values())}
"""A configuration of each family: the first of the cases."""


def in_words_of_megatron(config: Config) -> Any:
    """All that a checkpoint for Megatron is made of: tensors, arguments, and what these cannot say."""
    try:
        table = table_for(config)
        assert table is not None
        said = arguments_of_config(config)
    except FamilyError as refused:
        return str(refused)
    return table.logical, table.tied, said.args, said.unsaid


def with_fields(config: Config, changes: Config) -> Config:
    """A configuration with other values in its text model's fields, each in the spelling that its family has."""
    text = dict(text_config(config))
    for name, value in changes.items():
        names = {own for own in (*text, "hidden_activation") if spelling(own) == name}
        text |= dict.fromkeys({*names, name}, value)
    return config | {"text_config": text} if "text_config" in config else text


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_makes_a_difference_for_megatron(family: str) -> None:
    config = BY_FAMILY[family] | {"tie_word_embeddings": False}
    silent = []
    for field in sorted(heeded_fields(family) or ()):
        before = with_fields(config, NEEDED.get(field, {}))
        values = CHANGED[field] if isinstance(CHANGED[field], tuple) else (CHANGED[field],)
        after = [with_fields(before, {field: value}) for value in values]
        if field == "tie_word_embeddings":
            after = [config | {field: True}]
        if all(in_words_of_megatron(x) == in_words_of_megatron(before) for x in after):
            silent.append(field)
    assert silent == [field for of, field in sorted(WITHOUT_EFFECT) if of == family]


WINDOWS: list[Config] = [
    {},
    {"sliding_window": 5},
    {"sliding_window": 5, "use_sliding_window": True},
    {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
    {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 3},
    {"sliding_window": 5, "use_sliding_window": True, "no_rope_layers": [1, 0, 0]},
    {"use_sliding_window": True, "max_window_layers": 0},
    {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    {"sliding_window": None},
]


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if "linear_key_head_dim" not in fields_read(f)]
)
def test_the_same_layers_have_a_window(family: str, tmp_path: Path) -> None:
    for change in WINDOWS[: -1 if family == "cwm" else None]:  # whose class refuses a null
        config = with_fields(BY_FAMILY[family], change)
        (tmp_path / "config.json").write_text(json.dumps(config))
        made = AutoConfig.from_pretrained(tmp_path)
        text = getattr(made, "text_config", made)
        heeded = fields_read(text.model_type)
        size = getattr(text, "sliding_window", None) if "sliding_window" in heeded else None
        kinds = text.layer_types if "layer_types" in heeded else ["sliding_attention"] * 3
        theirs = [bool(size) and kind == "sliding_attention" for kind in kinds]
        if (family, "sliding_window") in WITHOUT_EFFECT:
            theirs = [False] * 3
        args = arguments_of_config(config).args
        ours = args.get("window_attn_skip_freq") or [args["window_size"] is not None] * 3
        assert [bool(x) for x in ours] == theirs, change
        assert args["window_size"] == ((size - 1, 0) if any(theirs) else None), change


HAVE_TO_BE_GIVEN = {"intermediate_size", "max_position_embeddings", "model_type"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.one_in(3)
def test_a_field_that_is_left_out_is_what_transformers_takes_it_for(family: str) -> None:
    config = BY_FAMILY[family]
    kind = CONFIG_MAPPING[config["model_type"]]
    whole = json.loads(json.dumps(kind(**deepcopy(config)).to_dict()))
    text = text_config(whole)
    of_rotation = {("rope_parameters", name) for name in text["rope_parameters"]}
    unlike = []
    for path in {(name,) for name in text if name not in HAVE_TO_BE_GIVEN} | of_rotation:
        part = deepcopy(whole)
        within = text_config(part) if len(path) == 1 else text_config(part)[path[0]]
        del within[path[-1]]
        ours = in_words_of_megatron(part)
        with suppress(Exception):  # whatever its class does not take, no model has
            theirs = json.loads(json.dumps(kind(**deepcopy(part)).to_dict()))
            if not isinstance(ours, str) and ours[2:] != in_words_of_megatron(theirs)[2:]:
                unlike.append(path)
    assert not unlike

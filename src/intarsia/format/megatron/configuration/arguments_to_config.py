"""A model's configuration out of a Megatron checkpoint.

Megatron's arguments do not name a model family, and some of them are defaults that the model
does not use.  So the family and every size are taken from the stored tensors, and only what no
shape tells (how many heads, the rotation, the router's scores) from the arguments.  Where several
hub families would store the same tensors, nothing is guessed: the user gives `--config`.  What is
made is translated back: arguments that it does not say are named, and it is not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.errors import FormatError, few
from intarsia.family.config.heeded import heeded_fields
from intarsia.format.dcp.metadata import Metadata
from intarsia.format.megatron.common import whole_argument
from intarsia.format.megatron.configuration.argument_facts import model_facts, scaling_if_ignored
from intarsia.format.megatron.configuration.argument_table import (
    NORMED,
    ROPE,
    ROWS,
    UNSAID,
    YARN,
)
from intarsia.format.megatron.configuration.config_to_arguments import LLAMA3
from intarsia.format.megatron.configuration.contradictions import (
    disagreements,
    disproved,
    notes_on_hub,
)
from intarsia.format.megatron.configuration.stored_model import StoredModel
from intarsia.format.torch_file.plain import plain
from intarsia.frozen import frozen_open

Config = dict[str, Any]

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}


@frozen_open
class MadeConfig:
    """A configuration made from arguments; `unsaid` are the arguments that it leaves out."""

    config: Config | None = None
    notes: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()


def config_from_arguments(args: Mapping[str, Any], metadata: Metadata) -> MadeConfig:
    """A hub configuration of the stored model; none where its family is not known."""
    notes: list[str] = []
    try:
        seen = StoredModel(metadata)
        config = _config(args, seen, notes)
    except (ArithmeticError, LookupError, StopIteration, ValueError) as error:
        raise FormatError(
            "the shapes of the stored tensors fit no model that Megatron saves"
            f" ({type(error).__name__}: {error})",
            hint="give the model's config.json with --config",
        ) from error
    if config is None:
        return MadeConfig()
    config = _with_unsaid(config, args)
    if strange := seen.strange_to(config):
        return MadeConfig(notes=(f"not a {config['model_type']}, which has no {few(strange, 4)}",))
    doubt = disproved(args, metadata.tensors)
    said, default = model_facts(args), {name: row.default for name, row in ROWS.items()}
    found = disagreements(args, config)
    unsaid = [c.field for c in found if doubt is None or c.first != default[c.field]]
    if scaling_if_ignored(args) is not None:
        unsaid.append("rope_scaling")
    if doubt is not None:
        unsaid += [name for name in _TAKEN if name in said and said[name] == default[name]]
        notes.append(f"stored arguments are defaults that the model may not use: {doubt}")
    said |= {UNSAID: plain(args.get(UNSAID)), "vocab_size": args.get("vocab_size")}
    beyond = tuple(f"{name}={said[name]!r}" for name in unsaid)
    notes += notes_on_hub(args, config)
    return MadeConfig(config, (_how_read(config, beyond), *notes), beyond)


def _with_unsaid(config: Config, args: Mapping[str, Any]) -> Config:
    """The same with the fields that our own conversion kept for want of arguments, where its family heeds them all."""
    kept = plain(args.get(UNSAID))
    if not isinstance(kept, dict):
        return config
    base = {"rope_theta": config["rope_parameters"]["rope_theta"]}
    rope = {ROPE: base | kept[ROPE]} if isinstance(kept.get(ROPE), dict) else {}
    whole = config | kept | rope
    heeded = heeded_fields(config["model_type"]) or ()
    return {k: v for k, v in whole.items() if k in config or k in heeded}


def _how_read(config: Config, beyond: tuple[str, ...]) -> str:
    family = f"a {config['model_type']} with {config['num_attention_heads']} heads"
    if beyond:
        return (
            f"the tensors are read as those of {family}, and the stored arguments have {few(beyond, 4)}, which"
            " are in doubt or which no such configuration can express: the model may be another; give its own"
            " config.json with --config"
        )
    return f"config.json is made from Megatron's arguments: {family}; give --config to use the model's own"


_TAKEN = ("norm_epsilon", "rotary_base", "rotary_percent", "rope_scaling")
"""What a configuration takes from arguments and no tensor confirms."""


def _config(args: Mapping[str, Any], seen: StoredModel, notes: list[str]) -> Config | None:
    heads, family, facts = (
        whole_argument(args, "num_attention_heads"),
        _family(args, seen),
        model_facts(args),
    )
    if any(args.get(name) for name in _OF_NO_FAMILY):
        return None
    if facts.get("activation", "gelu") in ("gelu", "squared_relu") and not seen.gated:
        return None
    embedding, qkv = seen.shape("word_embeddings.weight"), seen.shape("linear_qkv.weight")
    if family is None or heads is None or not (embedding and seen.layers and seen.dtype):
        return None
    vocab, hidden = embedding
    if family == "llama" and (facts.get("window") or (0, 1))[1:] == (0, ()):
        family = "mistral"
    padded = whole_argument(args, "vocab_size") is None
    if padded:
        notes.append(
            f"the true size of the vocabulary is not stored: all {vocab:,} rows are taken, with"
            " padding if they have any; give --config to leave it out"
        )
    config: Config = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "num_hidden_layers": 1 + max(n for layers in seen.layers.values() for n in layers),
        "hidden_size": hidden,
        "vocab_size": vocab if padded else min(args["vocab_size"], vocab),
        "num_attention_heads": heads,
        "hidden_act": "silu",
        "rms_norm_eps": facts.get("norm_epsilon", 1e-5),
        "rope_parameters": _rotation(facts),
        "max_position_embeddings": whole_argument(args, "max_position_embeddings")
        or whole_argument(args, "seq_length")
        or 4096,
        "tie_word_embeddings": not seen.has("output_layer.weight"),
        "attention_bias": False,
        "dtype": seen.dtype,
    }
    if family == "deepseek_v3":
        _latent(config, seen)
    else:
        width = whole_argument(args, "kv_channels") or hidden // heads
        normed = seen.shape("q_layernorm.weight")
        if normed == (heads * width,) and heads > 1:
            return None  # one norm over all heads: olmoe, whose other fields no argument gives
        width = normed[0] if normed else width
        config["head_dim"] = width
        config["num_key_value_heads"] = (qkv[0] // width - heads) // 2
    dense = seen.shapes.get("mlp.linear_fc1.weight")
    if dense:
        config["intermediate_size"] = dense[0] // 2
    if seen.has("mlp.router.weight"):
        _sparse(config, seen, args, family)
    if family in ("mistral", "mixtral"):
        window = facts.get("window")
        config["sliding_window"] = window[0] + 1 if window is not None else None
    return config


def _rotation(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The rotation, as Transformers 5 spells it; what it cannot spell is left to the comparison."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": facts.get("rotary_base", 10000)}
    if facts.get("rotary_percent", 1.0) != 1.0:
        rope["partial_rotary_factor"] = facts["rotary_percent"]
    kind, *numbers = facts.get("rope_scaling", ("default",))
    if kind == "linear":
        rope |= {"rope_type": kind, "factor": float(numbers[0])}
    elif kind == "llama3" and numbers[0] is not None:
        rope |= {"rope_type": kind, "factor": float(numbers[0]), **LLAMA3}
    elif kind == "yarn":
        said = zip(YARN, numbers, strict=False)
        rope |= {"rope_type": kind, **{name: value for name, value in said if value is not None}}
    return rope


_OF_NO_FAMILY = (
    "moe_mlp_glu_interleave_size", "moe_shared_expert_glu_interleave_size",
    "heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json", "mtp_use_repeated_layer",
)  # fmt: skip
"""Arguments with which tensors of the usual names are not a family's: gate and up rows alternate, layers are unlike or used again."""


def _family(args: Mapping[str, Any], seen: StoredModel) -> str | None:
    """The hub family that stores such tensors, where there is but one.

    What a family must have, and arguments and tensors alike say that the model has not, makes it another's.
    """
    sparse = seen.has("mlp.router.weight")
    if seen.has("in_proj.", "post_layernorm", "softmax_offset", "linear_proj.bias"):
        return None
    if seen.has("linear_kv_down_proj"):
        biased = seen.has("expert_bias") or args.get("moe_router_enable_expert_bias") is True
        normed = seen.has("kv_layernorm", "kv_up_proj.layer_norm") or args.get("qk_layernorm")
        whole = _dense_first(args, seen) and _shared_are_whole(seen)
        return "deepseek_v3" if biased and normed and whole else None
    if seen.has("linear_qkv.bias"):
        return None if sparse else "qwen2"
    if seen.has("q_layernorm"):
        if sparse and seen.has("shared_experts", "expert_bias"):
            return None
        return "qwen3_moe" if sparse else "qwen3"
    if sparse:
        return None if seen.has("shared_experts", "expert_bias") else "mixtral"
    return "llama"


def _dense_first(args: Mapping[str, Any], seen: StoredModel) -> bool:
    """Whether the layers with experts are the last ones, as arguments have them; else as they are stored."""
    layers = sorted(
        {n for rest, held in seen.layers.items() if "mlp.router." in rest for n in held}
    )
    said = args.get("moe_layer_freq")
    if isinstance(said, list):
        layers = [n for n, sparse in enumerate(said) if sparse]
    return not layers or layers == [*range(layers[0], layers[-1] + 1)]


def _shared_are_whole(seen: StoredModel) -> bool:
    """Whether shared experts are as wide as some number of the others."""
    shared = seen.shape("shared_experts.linear_fc1.weight")
    routed = seen.shape("experts.experts.linear_fc1.weight")
    return not (shared and routed) or shared[0] % routed[1] == 0


def _latent(config: Config, seen: StoredModel) -> None:
    heads, down = config["num_attention_heads"], seen.shape("linear_kv_down_proj.weight")
    up = seen.shape("linear_kv_up_proj.weight")
    query = seen.shape("linear_q_up_proj.weight") or seen.shape("linear_q_proj.weight")
    rope = down[0] - up[1]
    nope = query[0] // heads - rope
    config |= {
        "num_key_value_heads": heads,
        "kv_lora_rank": up[1],
        "q_lora_rank": query[1] if seen.has("linear_q_up_proj") else None,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": nope,
        "v_head_dim": up[0] // heads - nope,
        "num_nextn_predict_layers": 1 + max(seen.predicting, default=-1),
    }


def _sparse(config: Config, seen: StoredModel, args: Mapping[str, Any], family: str) -> None:
    count, inner, _ = seen.shape("experts.experts.linear_fc1.weight") or (0, 0, 0)
    inner //= 2
    config["num_experts_per_tok"] = whole_argument(args, "moe_router_topk") or 2
    facts = model_facts(args)
    if family == "mixtral":
        config |= {"num_local_experts": count, "intermediate_size": inner}
        return
    config["moe_intermediate_size"] = inner
    config.setdefault("intermediate_size", whole_argument(args, "ffn_hidden_size") or inner)
    if family == "qwen3_moe":
        dense = sorted(seen.layers.get("mlp.linear_fc2.weight", ()))
        config |= {"num_experts": count, "decoder_sparse_step": 1, "mlp_only_layers": dense}
        config[NORMED] = not facts.get("moe_router_pre_softmax")
        return
    shared = seen.shape("shared_experts.linear_fc1.weight")
    routed = (layers for rest, layers in seen.layers.items() if "mlp.router." in rest)
    config |= {
        "n_routed_experts": count,
        "n_shared_experts": shared[0] // (2 * inner) if shared else 0,
        "first_k_dense_replace": min(set().union(*routed), default=0),
        "routed_scaling_factor": facts.get("moe_router_topk_scaling_factor", 1.0),
        "n_group": facts.get("moe_router_num_groups", 1),
        "topk_group": facts.get("moe_router_group_topk", 1),
        NORMED: facts.get(NORMED, True),
    }

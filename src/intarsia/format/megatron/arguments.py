"""Megatron's arguments and the fields of a hub configuration: one table, read both ways.

`arguments_of_config` says in Megatron-LM's words what a configuration means, and lists what those
words cannot say.  `facts_of` brings arguments, whoever stored them, into one form, so that two
sources can be compared: a model has one number of heads and one rotation, whoever names them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family.meaning import Contradiction, meaning_of, sizes_of
from intarsia.mesh import Shape

Arguments = Mapping[str, Any]

_LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2")
_SIGMOID = ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "kimi_k2")
_LINEAR = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_PARTLY_ROTATED = ("glm4_moe", "glm4_moe_lite", "phi3", *_LINEAR)
"""Families whose modules rotate a part of each head; others take no notice of the field."""

_INNER_IS_EXPERT = ("mixtral", "gpt_oss", "olmoe")
_SCALED_EMBEDDING = ("gemma", "gemma2", "gemma3", "gemma3_text")
_WIDTHS = {"gemma": 256, "gemma2": 256, "gemma3": 256, "gemma3_text": 256, "gpt_oss": 64,
           "qwen3": 128, "qwen3_next": 256, "qwen3_vl": 128} | dict.fromkeys(_LINEAR, 256)  # fmt: skip
UNSAID = "only_in_config_json"
"""Our word among the arguments for what they cannot say: a configuration made from them is not the model's."""

LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What Megatron's `--use-rope-scaling` has built in, beside the factor."""

_YARN = {
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.0,
}
"""The further settings of latent attention's rotation, and Megatron's defaults."""

_UNSAYABLE = {
    "attention_multiplier": 1.0, "attn_logit_softcapping": None, "clip_qkv": None,
    "embedding_multiplier": 1.0, "final_logit_softcapping": None, "logits_scaling": 1.0,
    "residual_multiplier": 1.0, "swiglu_alpha": 1.702, "use_bidirectional_attention": False, "attention_chunk_size": None,
}  # fmt: skip
"""Fields that no argument of Megatron-LM says, and the value at which they change nothing."""


_ROPE, _ACTIVATION = "rope_parameters", "hidden_act"


@dataclass(frozen=True, slots=True)
class Row:
    """An argument of Megatron-LM and the fields that give it; `default` is its parser's."""

    argument: str
    fields: tuple[str, ...]
    default: Any = None
    spellings: tuple[str, ...] = ()


_ROWS = (
    Row("num_layers", ("num_hidden_layers",)),
    Row("hidden_size", ("hidden_size",)),
    Row("num_attention_heads", ("num_attention_heads",)),
    Row("num_query_groups", ("num_key_value_heads",)),
    Row("kv_channels", ("head_dim",)),
    Row("ffn_hidden_size", ("intermediate_size",)),
    Row("norm_epsilon", ("rms_norm_eps",), 1e-5, ("layernorm_epsilon",)),
    Row("rotary_base", ("rope_parameters.rope_theta",), 10000),
    Row("rotary_percent", ("rope_parameters.partial_rotary_factor",), 1.0),
    Row("rotary_interleaved", ("model_type",), False),
    Row("rope_scaling", ("rope_parameters",), ("default",)),
    Row("no_rope_layers", ("no_rope_layers",), ()),
    Row("window", ("sliding_window", "layer_types"), None),
    Row("activation", ("hidden_act",), "gelu"),
    Row("activation_func_clamp_value", ("swiglu_limit",), None),
    Row("glu_linear_offset", ("model_type",), 0.0),
    Row("softmax_type", ("model_type",), "vanilla"),
    Row("softmax_scale", ("query_pre_attn_scalar", "attention_multiplier"), None),
    Row("attention_output_gate", ("model_type",), False),
    Row("qk_l2_norm", ("model_type",), False),
    Row("moe_apply_probs_on_input", ("model_type",), False),
    Row("num_experts", ("num_experts",), None, ("num_moe_experts",)),
    Row("moe_ffn_hidden_size", ("moe_intermediate_size",)),
    Row("moe_router_topk", ("num_experts_per_tok",), 2),
    Row("moe_router_score_function", ("model_type",), "softmax"),
    Row("moe_router_pre_softmax", ("norm_topk_prob",), False),
    Row("moe_router_topk_scaling_factor", ("routed_scaling_factor",), 1.0),
    Row("moe_router_num_groups", ("n_group",), 1),
    Row("moe_router_group_topk", ("topk_group",), 1),
    Row("moe_router_enable_expert_bias", ("model_type",), False),
    Row("moe_shared_expert_intermediate_size", ("shared_expert_intermediate_size", "n_shared_experts")),
    Row("moe_shared_expert_gate", ("model_type",), False),
    Row("q_lora_rank", ("q_lora_rank",)),
    Row("kv_lora_rank", ("kv_lora_rank",), 32),
    Row("qk_head_dim", ("qk_nope_head_dim",), 128),
    Row("qk_pos_emb_head_dim", ("qk_rope_head_dim",), 64),
    Row("v_head_dim", ("v_head_dim",), 128),
    Row("linear_conv_kernel_dim", ("linear_conv_kernel_dim",), 4),
    Row("linear_key_head_dim", ("linear_key_head_dim",), 128),
    Row("linear_value_head_dim", ("linear_value_head_dim",), 128),
    Row("linear_num_key_heads", ("linear_num_key_heads",), 16),
    Row("linear_num_value_heads", ("linear_num_value_heads",), 32),
    Row("vocab_size", ("vocab_size",)),
    Row(UNSAID, ("other fields",)),
)  # fmt: skip
ROWS = {row.argument: row for row in _ROWS}


@dataclass
class Said:
    """The arguments that say what a configuration means, and the fields that they cannot say."""

    args: dict[str, Any] = field(default_factory=dict)
    unsaid: dict[str, Any] = field(default_factory=dict)


def arguments_of_config(config: Mapping[str, Any]) -> Said:
    """What a configuration says, in the words of Megatron-LM's arguments."""
    said, text = Said(), sizes_of(config) | meaning_of(config)
    family = str(config.get("model_type"))
    _sizes(said, text, family)
    _rotation(said, text, family)
    _attention(said, text, family)
    _activation(said, text, family)
    if text.get("num_experts"):
        _experts(said, text, family)
    for name, neutral in _UNSAYABLE.items():
        if text.get(name, neutral) != neutral:
            said.unsaid[name] = text[name]
    if family in _SCALED_EMBEDDING:
        said.unsaid["the embedding's scale"] = "sqrt(hidden_size)"
    scalar, width = text.get("query_pre_attn_scalar"), said.args.get("kv_channels")
    if scalar is not None and scalar != width:
        said.unsaid["query_pre_attn_scalar"] = scalar
    return said


def _sizes(said: Said, text: Mapping[str, Any], family: str) -> None:
    args = said.args
    latent = family in _LATENT
    for name in ("num_layers", "hidden_size", "num_attention_heads", "norm_epsilon"):
        _take(args, name, text, *ROWS[name].fields)
    _take(args, "layernorm_epsilon", text, "rms_norm_eps")
    _take(args, "max_position_embeddings", text, "max_position_embeddings")
    _take(args, "vocab_size", text, "vocab_size")
    _take(args, "num_query_groups", text, "num_key_value_heads")
    heads, hidden = args.get("num_attention_heads"), args.get("hidden_size")
    if latent:
        args["num_query_groups"] = heads
        args["multi_latent_attention"] = True
        args["q_lora_rank"] = text.get("q_lora_rank")
        for name in ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"):
            _take(args, name, text, *ROWS[name].fields)
    elif heads and hidden:
        args["kv_channels"] = text.get("head_dim") or _WIDTHS.get(family) or hidden // heads
    args["group_query_attention"] = args.get("num_query_groups", heads) != heads
    if family not in _INNER_IS_EXPERT:
        _take(args, "ffn_hidden_size", text, "intermediate_size")
    if family in _LINEAR:
        args["experimental_attention_variant"] = "gated_delta_net"
        for name in ROWS:
            if name.startswith("linear_"):
                _take(args, name, text, name)
        args.setdefault("linear_conv_kernel_dim", 4)
        args["linear_attention_freq"] = _linear_layers(text)
        args["attention_output_gate"] = True


def _take(args: dict[str, Any], name: str, text: Mapping[str, Any], *fields: str) -> None:
    value = next((text[f] for f in fields if text.get(f) is not None), None)
    if value is not None:
        args[name] = value


def _layers(text: Mapping[str, Any]) -> range:
    count = text.get("num_hidden_layers")
    return range(count if type(count) is int else 0)


def _linear_layers(text: Mapping[str, Any]) -> list[int]:
    """Megatron's list: one for a layer with linear attention."""
    kinds = text.get("layer_types")
    if kinds:
        return [int(kind == "linear_attention") for kind in kinds]
    every = text.get("full_attention_interval") or 4
    return [int((i + 1) % every != 0) for i in _layers(text)]


def _rotation(said: Said, text: Mapping[str, Any], family: str) -> None:
    args, rope = said.args, text["rope_parameters"]
    args["position_embedding_type"] = "rope"
    args["add_position_embedding"] = True
    if "full_attention" in rope:
        said.unsaid["rope_parameters.sliding_attention"] = rope.get("sliding_attention")
        rope = rope["full_attention"]
    _take(args, "rotary_base", rope, "rope_theta")
    args["rotary_percent"] = (
        rope.get("partial_rotary_factor", 1.0) if family in _PARTLY_ROTATED else 1.0
    )
    args["rotary_interleaved"] = family == "ernie4_5"
    if family in _LATENT and text.get("rope_interleave", True) is False:
        said.unsaid["rope_interleave"] = False
    (_latent_scaling if family in _LATENT else _scaling)(said, rope)
    if rope.get("llama_4_scaling_beta"):
        said.unsaid["llama_4_scaling_beta"] = rope["llama_4_scaling_beta"]
    if rope.get("mrope_section"):
        args |= {"position_embedding_type": "mrope", "mrope_section": list(rope["mrope_section"])}
        if rope.get("mrope_interleaved"):
            said.unsaid["mrope_interleaved"] = True
    kept = _rotated(text, family)
    args["no_rope_freq"] = None if all(kept) else [int(not rotated) for rotated in kept]


def _rotated(text: Mapping[str, Any], family: str) -> list[bool]:
    """Which layers rotate their heads at all."""
    if family != "smollm3":
        return [True]
    listed = text.get("no_rope_layers")
    every = text.get("no_rope_layer_interval") or 4
    return [bool(x) for x in listed] if listed else [(i + 1) % every != 0 for i in _layers(text)]


def _scaling(said: Said, rope: Mapping[str, Any]) -> None:
    args, kind = said.args, rope.get("rope_type", "default")
    factor = rope.get("factor")
    if kind == "llama3" and all(rope.get(k, v) == v for k, v in LLAMA3.items()):
        args |= {"use_rope_scaling": True, "rope_scaling_factor": factor}
    elif kind == "linear" and isinstance(factor, (int, float)) and factor == int(factor):
        args["rotary_seq_len_interpolation_factor"] = int(factor)
    elif kind == "yarn" and rope.get("attention_factor") is None:
        args |= {
            "position_embedding_type": "yarn",
            "yarn_rotary_scaling_factor": factor,
            "yarn_original_max_position_embeddings": rope.get("original_max_position_embeddings"),
            "yarn_beta_fast": rope.get("beta_fast", 32.0),
            "yarn_beta_slow": rope.get("beta_slow", 1.0),
            "yarn_mscale": rope.get("mscale"),
            "yarn_mscale_all_dim": rope.get("mscale_all_dim"),
            "yarn_correction_range_round_to_int": rope.get("truncate", True),
        }
    elif kind != "default":
        said.unsaid[_ROPE] = {k: v for k, v in sorted(rope.items()) if k != "rope_theta"}


def _latent_scaling(said: Said, rope: Mapping[str, Any]) -> None:
    args, kind = said.args, rope.get("rope_type", "default")
    if kind == "default":
        args["rope_type"] = "rope"
    elif kind == "yarn":
        args |= {
            "rope_type": "yarn",
            "rotary_scaling_factor": rope.get("factor"),
            "original_max_position_embeddings": rope.get("original_max_position_embeddings"),
            "beta_fast": rope.get("beta_fast", 32.0),
            "beta_slow": rope.get("beta_slow", 1.0),
            "mscale": rope.get("mscale", 1.0),
            "mscale_all_dim": rope.get("mscale_all_dim", 0.0),
        }
    else:
        said.unsaid[_ROPE] = dict(sorted(rope.items()))


def _attention(said: Said, text: Mapping[str, Any], family: str) -> None:
    args = said.args
    args["softmax_type"] = "learnable" if family == "gpt_oss" else "vanilla"
    window, layers = text.get("sliding_window"), windowed_layers(text, family)
    args["window_size"] = None
    if window and any(layers):
        args["window_size"] = (window - 1, 0)
        args["window_attn_skip_freq"] = None if all(layers) else [int(x) for x in layers]


def windowed_layers(text: Mapping[str, Any], family: str) -> list[bool]:
    """Which layers attend to a window only, as Transformers makes them where no list says so."""
    kinds = text.get("layer_types")
    layers = _layers(text)
    if kinds:
        return [kind == "sliding_attention" for kind in kinds]
    if family in ("gemma2", "gpt_oss"):
        return [i % 2 == 0 for i in layers]
    if family.startswith("gemma3"):
        every = text.get("sliding_window_pattern") or text.get("_sliding_window_pattern") or 6
        return [(i + 1) % every != 0 for i in layers]
    if family == "cwm":
        return [i % 4 != 0 for i in layers]
    if family in ("mistral", "mistral3", "ministral", "ministral3", "mixtral", "phi3"):
        return [True for _ in layers]
    if text.get("use_sliding_window") and family.startswith(("qwen2", "qwen3", "smollm3")):
        whole = text.get("max_window_layers", 28)
        return [i >= whole for i in layers]
    return [False for _ in layers]


def _activation(said: Said, text: Mapping[str, Any], family: str) -> None:
    args, kind = said.args, text.get("hidden_act")
    args |= {"normalization": "RMSNorm", "swiglu": kind == "silu" and family != "gpt_oss"}
    if family == "gpt_oss":
        limit = text.get("swiglu_limit")
        args |= {
            "quick_geglu": True,
            "glu_linear_offset": 1.0,
            "activation_func_clamp_value": limit,
        }
    elif kind != "silu":
        said.unsaid[_ACTIVATION] = kind


def _experts(said: Said, text: Mapping[str, Any], family: str) -> None:
    args, sigmoid = said.args, family in _SIGMOID
    inner = "intermediate_size" if family in _INNER_IS_EXPERT else "moe_intermediate_size"
    _take(args, "num_experts", text, "num_experts")
    _take(args, "moe_ffn_hidden_size", text, inner)
    _take(args, "moe_router_topk", text, "num_experts_per_tok")
    if family in _INNER_IS_EXPERT:
        _take(args, "ffn_hidden_size", text, inner)
    args["moe_router_score_function"] = "sigmoid" if sigmoid else "softmax"
    args["moe_router_enable_expert_bias"] = sigmoid
    normed = text.get("norm_topk_prob", True)
    args["moe_router_pre_softmax"] = not normed and not sigmoid
    if sigmoid and not normed:
        said.unsaid["norm_topk_prob"] = False
    scale = text.get("routed_scaling_factor")
    routed = family.startswith(("deepseek", "glm4_moe", "kimi"))
    args["moe_router_topk_scaling_factor"] = scale if routed else None
    groups = (text.get("n_group") or 1) if routed and family != "deepseek_v2" else 1
    args["moe_router_num_groups"] = groups if groups > 1 else None
    args["moe_router_group_topk"] = text.get("topk_group") if groups > 1 else None
    if family == "deepseek_v2" and text.get("topk_method", "greedy") != "greedy":
        said.unsaid["topk_method"] = text["topk_method"]
    shared = text.get("shared_expert_intermediate_size")
    if shared is None and text.get("n_shared_experts"):
        shared = text["n_shared_experts"] * args.get("moe_ffn_hidden_size", 0)
    if shared:
        args["moe_shared_expert_intermediate_size"] = shared
        args["moe_shared_expert_gate"] = family.startswith("qwen")
    args["moe_layer_freq"] = _sparse_layers(text, family)


def _sparse_layers(text: Mapping[str, Any], family: str) -> int | list[int]:
    """Megatron's list: one for a layer with experts; 1 where all have them."""
    kinds = text.get("mlp_layer_types")
    if kinds:
        found = [int(kind == "sparse") for kind in kinds]
    elif family in (*_LATENT, "glm4_moe"):
        dense = text.get("first_k_dense_replace", 0)
        found = [int(i >= dense) for i in _layers(text)]
    else:
        step, dense_ = text.get("decoder_sparse_step") or 1, text.get("mlp_only_layers") or ()
        found = [int(i not in dense_ and (i + 1) % step == 0) for i in _layers(text)]
    return 1 if all(found) else found


def facts_of(args: Arguments) -> dict[str, Any]:
    """What arguments say of a model, in one form for all of Megatron's spellings of them."""
    facts: dict[str, Any] = {}
    for row in _ROWS:
        for name in (row.argument, *row.spellings):
            value = args.get(name)
            if type(value) in (int, float, bool, str):
                facts[row.argument] = value
                break
    heads = facts.get("num_attention_heads")
    if args.get("group_query_attention") is False and heads is not None:
        facts["num_query_groups"] = heads
    for name, neutral in (("moe_router_topk_scaling_factor", 1.0), ("moe_router_num_groups", 1),
                          ("moe_router_group_topk", 1)):  # fmt: skip
        if name in args and facts.get(name) is None:
            facts[name] = neutral
    if facts.get("moe_router_num_groups") == 1:
        facts.pop("moe_router_group_topk", None)
    if facts.get("moe_router_score_function") == "sigmoid":
        facts.pop("moe_router_pre_softmax", None)
    latent = args.get("multi_latent_attention") is True
    for name in ("q_lora_rank",) if latent and "q_lora_rank" in args else ():
        facts.setdefault(name, None)
    if latent:
        facts.pop("kv_channels", None)
        facts.pop("num_query_groups", None)
    facts.pop("vocab_size", None)  # a configuration may count padding rows too
    if "softmax_scale" in args and "kv_channels" in facts:
        facts["softmax_scale"] = args["softmax_scale"] or facts["kv_channels"] ** -0.5
    facts |= dict(_said_scaling(args, latent))
    if "window_size" in args:
        facts["window"] = _said_window(args)
    if "no_rope_freq" in args:
        facts["no_rope_layers"] = _said_unrotated(args)
    if (activation := _said_activation(args)) is not None:
        facts["activation"] = activation
    return facts


def _said_scaling(args: Arguments, latent: bool) -> Iterator[tuple[str, Any]]:
    if latent:
        factor = args.get("rotary_scaling_factor")
        if args.get("rope_type") == "rope" or factor in (1, 1.0):
            yield "rope_scaling", ("default",)
        elif factor is not None:
            yield "rope_scaling", ("yarn", factor, *(args.get(k, v) for k, v in _YARN.items()))
        return
    kind = args.get("position_embedding_type")
    linear = args.get("rotary_seq_len_interpolation_factor") or args.get(
        "seq_len_interpolation_factor"
    )
    if kind == "yarn":
        names = ("rotary_scaling_factor", "original_max_position_embeddings", "beta_fast",
                 "beta_slow", "mscale", "mscale_all_dim", "correction_range_round_to_int")  # fmt: skip
        yield "rope_scaling", ("yarn", *(args.get(f"yarn_{name}") for name in names))
    elif args.get("use_rope_scaling") or args.get("rope_scaling") is True:
        yield "rope_scaling", ("llama3", args.get("rope_scaling_factor"))
    elif linear:
        yield "rope_scaling", ("linear", linear)
    elif kind in ("rope", "mrope"):
        yield "rope_scaling", ("default",)
    elif kind is not None:
        yield "rope_scaling", (kind,)


def _listed(args: Arguments, name: str, of_layer: Callable[[int, int], bool]) -> tuple[bool, ...]:
    """An argument that is a number or a list, as one word for every layer."""
    value, count = args.get(name), args.get("num_layers")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(bool, value))
    layers = range(count if type(count) is int else 0)
    return tuple(of_layer(value, i + 1) for i in layers) if type(value) is int else ()


def _said_window(args: Arguments) -> Any:
    size = args.get("window_size")
    if not isinstance(size, Sequence) or isinstance(size, str) or not size:
        return None
    layers = _listed(args, "window_attn_skip_freq", lambda every, i: i % every != 0)
    return (*size, () if all(layers) else layers)


def _said_unrotated(args: Arguments) -> tuple[bool, ...]:
    layers = _listed(args, "no_rope_freq", lambda every, i: i % every == 0)
    return layers if any(layers) else ()


def _said_activation(args: Arguments) -> str | None:
    for name in ("swiglu", "quick_geglu", "squared_relu"):
        if args.get(name) is True:
            return name
    if args.get("swiglu") is False:
        return "gelu"
    function = str(args.get("activation_func") or "").rpartition(".")[2]
    gated = args.get("gated_linear_unit")
    known = {"silu": "swiglu", "quick_gelu": "quick_geglu"}
    return known.get(function, f"gated {function}") if gated and function else None


def disagreements(args: Arguments, config: Mapping[str, Any]) -> list[Contradiction]:
    """Where stored arguments and a configuration say different things of one model.

    The first value of each is the arguments'.  What arguments cannot say is compared with nothing
    but what they do say.
    """
    said = arguments_of_config(config)
    stored, given = facts_of(args), facts_of(said.args)
    if _ACTIVATION in said.unsaid:
        given["activation"] = f"gated {said.unsaid[_ACTIVATION]}"
        if stored.get("activation") not in ("swiglu", "quick_geglu", "squared_relu"):
            del given["activation"]
    if _ROPE in said.unsaid:
        given["rope_scaling"] = said.unsaid[_ROPE]
        if stored.get("rope_scaling") == ("default",):
            del given["rope_scaling"]
    if "num_experts" in given and said.args.get("moe_layer_freq") == 1:
        given.pop("ffn_hidden_size", None)  # no layer has it
    if "softmax_scale" in stored and "kv_channels" in given:
        given["softmax_scale"] = _scale_of(meaning_of(config), given["kv_channels"])
    for name in _NEUTRAL:
        given.setdefault(name, ROWS[name].default)
    found = [
        Contradiction(name, stored[name], given[name])
        for name in ROWS
        if name in stored and name in given and not _alike(stored[name], given[name])
    ]
    tokens, trained = meaning_of(config).get("vocab_size"), args.get("vocab_size")
    if type(tokens) is int and type(trained) is int and tokens < trained:
        found.append(Contradiction("vocab_size", trained, tokens))
    if args.get(UNSAID) and args[UNSAID] != said.unsaid:
        found.append(Contradiction(UNSAID, args[UNSAID], said.unsaid))
    return found


def _alike(a: Any, b: Any) -> bool:
    """Equal, but for what a float loses when it is written down."""
    if type(a) is float and type(b) is float:
        return isclose(a, b, rel_tol=1e-9)
    return bool(a == b)


def _scale_of(text: Mapping[str, Any], width: int) -> float:
    """What queries times keys are multiplied with."""
    said = text.get("attention_multiplier")
    return float(said) if said is not None else (text.get("query_pre_attn_scalar") or width) ** -0.5


_NEUTRAL = (
    "window", "no_rope_layers", "activation_func_clamp_value", "glu_linear_offset",
    "attention_output_gate", "qk_l2_norm", "moe_apply_probs_on_input",
)  # fmt: skip
"""Facts that a configuration without a word on them denies."""


def disproved(args: Arguments, names: Collection[str]) -> str | None:
    """An argument that the stored tensors contradict: then what was not set is not the model's.

    Scripts build models without Megatron's parser and store its defaults beside them.
    """

    def has(*words: str) -> bool:
        return any(word in name for name in names for word in words)

    latent = args.get("multi_latent_attention") is True
    biased = has("linear_proj.bias", "linear_fc2.bias")
    if args.get("add_bias_linear") is True and not biased:
        return "add_bias_linear=True, and no such bias is stored"
    if args.get("normalization") == "LayerNorm" and not has("norm.bias", "norm_bias"):
        return "normalization='LayerNorm', and no norm with a bias is stored"
    if args.get("qk_layernorm") is False and not latent and has("q_layernorm."):
        return "qk_layernorm=False, and `q_layernorm` is stored"
    return None


def check_arguments(
    args: Arguments, config: Mapping[str, Any], shapes: Mapping[str, Shape], where: str
) -> list[str]:
    """Raise where a configuration contradicts stored arguments; notes where those are in doubt."""
    found = disagreements(args, config)
    doubt = disproved(args, shapes) if found else None
    firm = [c for c in found if doubt is None or c.first != ROWS[c.field].default]
    if firm:
        listed = "; ".join(_described(c) for c in firm)
        raise FamilyError(
            f"the configuration contradicts the arguments that the model was trained with: {listed}"
            f" - at {where}",
            hint="correct config.json: it is another model's, or was changed since",
            kind="config-contradicts",
        )
    notes = list(_padding(args, config, shapes))
    if found:
        listed = "; ".join(_described(c) for c in found)
        notes.append(
            f"stored arguments are defaults that the model does not use ({doubt}): {listed}"
        )
    return notes


def _padding(
    args: Arguments, config: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> Iterator[str]:
    """A note of rows that are taken for padding though no argument gives the true vocabulary."""
    rows = next((s[0] for n, s in shapes.items() if n.endswith("word_embeddings.weight") and s), 0)
    tokens = meaning_of(config).get("vocab_size")
    if type(tokens) is int and tokens < rows and type(args.get("vocab_size")) is not int:
        yield (
            f"{rows - tokens:,} rows of the vocabulary after the configuration's {tokens:,} are taken for"
            " padding and left out: the stored arguments do not give its true size"
        )


def _described(c: Contradiction) -> str:
    fields = " and ".join(ROWS[c.field].fields)
    return f"{c.field} is {c.first!r}, {fields} in the configuration gives {c.second!r}"

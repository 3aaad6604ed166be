"""Where stored arguments of Megatron-LM, a configuration and the stored tensors contradict each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import isclose, sqrt
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family.config.meaning import Contradiction, heeded_meaning_of
from intarsia.format.megatron.configuration.argument_facts import model_facts, scaling_if_ignored
from intarsia.format.megatron.configuration.argument_table import (
    ACTIVATION,
    GROUPS,
    LATENT_NORMS,
    NORMED,
    ROPE,
    ROWS,
    UNSAID,
    Arguments,
)
from intarsia.format.megatron.configuration.config_to_arguments import (
    EPSILON_OF_LATENTS,
    arguments_of_config,
)
from intarsia.format.megatron.configuration.layer_kinds import LATENT
from intarsia.mesh import Shape


def disagreements(args: Arguments, config: Mapping[str, Any]) -> list[Contradiction]:
    """Where stored arguments and a configuration say different things of one model.

    The first value of each is the arguments'.  What arguments cannot say is compared with nothing
    but what they do say.
    """
    said, meaning = arguments_of_config(config), heeded_meaning_of(config)
    stored, given = model_facts(args), model_facts(said.args)
    if ACTIVATION in said.unsaid:
        given["activation"] = f"gated {said.unsaid[ACTIVATION]}"
        if stored.get("activation") not in ("swiglu", "quick_geglu", "squared_relu"):
            del given["activation"]
    if ROPE in said.unsaid and given.get("rope_scaling", ("default",)) == ("default",):
        given["rope_scaling"] = said.unsaid[ROPE]
        if stored.get("rope_scaling") == ("default",):
            del given["rope_scaling"]
    if given.get("rope_scaling") == scaling_if_ignored(args):
        given.pop("rope_scaling", None)
    if NORMED in said.unsaid and NORMED not in (args.get(UNSAID) or ()):
        given[NORMED] = said.unsaid[NORMED]
    if GROUPS in said.unsaid and GROUPS not in (args.get(UNSAID) or ()):
        given["moe_router_num_groups"] = (
            f"{said.unsaid[GROUPS]}, each ranked by its two best experts"
        )
    if "num_experts" in given and said.args.get("moe_layer_freq") == 1:
        given.pop("ffn_hidden_size", None)  # no layer has it
    if "softmax_scale" in stored and "kv_channels" in given:
        given["softmax_scale"] = _scale_of(meaning, given["kv_channels"])
    for name in _NEUTRAL:
        given.setdefault(name, ROWS[name].default)
    found = [
        Contradiction(name, stored[name], given[name])
        for name in ROWS
        if name in stored and name in given and not _alike(stored[name], given[name])
    ]
    tokens, trained = meaning.get("vocab_size"), args.get("vocab_size")
    if type(tokens) is int and type(trained) is int and tokens < trained:
        found.append(Contradiction("vocab_size", trained, tokens))
    kept = args.get(UNSAID)
    if isinstance(kept, Mapping) and LATENT_NORMS not in kept:
        said.unsaid.pop(LATENT_NORMS, None)  # a run of Megatron's has no other
    if kept and kept != said.unsaid:
        found.append(Contradiction(UNSAID, kept, said.unsaid))
    return found


def _alike(a: Any, b: Any) -> bool:
    """Equal, but for what a float loses when it is written down."""
    if type(a) is float and type(b) is float:
        return isclose(a, b, rel_tol=1e-9)
    return bool(a == b)


def _scale_of(text: Mapping[str, Any], width: int) -> float:
    """What queries times keys are multiplied with."""
    said, scalar = text.get("attention_multiplier"), text.get("query_pre_attn_scalar")
    if isinstance(said, int | float):
        return float(said)
    return 1 / sqrt(scalar if isinstance(scalar, int | float) and scalar > 0 else width)


_NEUTRAL = (
    "window", "no_rope_layers", "activation_func_clamp_value", "glu_linear_offset",
    "attention_output_gate", "qk_l2_norm", "moe_apply_probs_on_input",
    "apply_residual_connection_post_layernorm", "use_mup", "moe_mlp_glu_interleave_size",
    "moe_shared_expert_glu_interleave_size", "moe_router_topk_limited_devices",
    "moe_router_load_balancing_type",
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
        raise FamilyError(
            "the configuration contradicts the arguments that the model was trained with:"
            f" {_described(firm)}",
            at=where,
            hint="correct config.json: it is another model's, or was changed since",
            kind="config-contradicts",
        )
    notes = [*_padding(args, config, shapes), *notes_on_hub(args, config)]
    if found:
        what = f"stored arguments are defaults that the model does not use ({doubt})"
        notes.append(f"{what}: {_described(found)}")
    return notes


def notes_on_hub(args: Arguments, config: Mapping[str, Any]) -> Iterator[str]:
    """What the run computes that Transformers' model of this configuration does not, whatever its fields say."""
    factor, epsilon = args.get("moe_expert_capacity_factor"), model_facts(args).get("norm_epsilon")
    if (
        isinstance(factor, int | float)
        and factor >= 0
        and heeded_meaning_of(config).get("num_experts")
    ):
        yield (
            f"the run drops tokens that an expert has no room for (moe_expert_capacity_factor={factor}), and"
            " Transformers drops none: it computes something else where an expert was full"
        )
    latent = config.get("model_type") in LATENT and type(epsilon) is float
    if latent and epsilon != EPSILON_OF_LATENTS and LATENT_NORMS not in (args.get(UNSAID) or ()):
        yield (
            f"the run computes the norms inside latent attention with norm_epsilon={epsilon}, as all others, and"
            f" Transformers these with {EPSILON_OF_LATENTS}, whatever rms_norm_eps says"
        )


def _padding(
    args: Arguments, config: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> Iterator[str]:
    """A note of rows that are taken for padding though no argument gives the true vocabulary."""
    rows = next((s[0] for n, s in shapes.items() if n.endswith("word_embeddings.weight") and s), 0)
    tokens = heeded_meaning_of(config).get("vocab_size")
    if type(tokens) is int and tokens < rows and type(args.get("vocab_size")) is not int:
        yield (
            f"{rows - tokens:,} rows of the vocabulary after the configuration's {tokens:,} are taken for"
            " padding and left out: the stored arguments do not give its true size"
        )


def _described(found: Iterable[Contradiction]) -> str:
    return "; ".join(
        f"{c.field} is {c.first!r}, {' and '.join(ROWS[c.field].fields)} in the configuration gives {c.second!r}"
        for c in found
    )

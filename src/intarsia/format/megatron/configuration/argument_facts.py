"""What arguments of Megatron-LM say of a model, in one form for all their spellings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from intarsia.family import MAX_LAYERS
from intarsia.format.megatron.configuration.argument_table import (
    BUILT_WITH,
    CENTERED,
    LATENT_YARN,
    NORMED,
    PARSED_YARN,
    ROPE,
    ROWS,
    STRETCHED,
    UNSAID,
    YARN,
    Arguments,
)


def model_facts(args: Arguments) -> dict[str, Any]:
    """What arguments say of a model, in one form for all of Megatron's spellings of them."""
    facts: dict[str, Any] = {}
    for row in ROWS.values():
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
    facts.pop(NORMED, None)  # no argument
    if facts.get("moe_router_score_function") == "sigmoid":
        facts.pop("moe_router_pre_softmax", None)
        if type(chosen := facts.get("moe_router_topk")) is int:
            facts[NORMED] = normed_by_megatron(chosen)
    if facts.get("moe_router_load_balancing_type") != "sinkhorn":
        facts.pop("moe_router_load_balancing_type", None)  # the others change only the loss
    latent = args.get("multi_latent_attention") is True
    if latent and "q_lora_rank" in args:
        facts.setdefault("q_lora_rank", None)
    if latent:
        facts.pop("kv_channels", None)
        facts.pop("num_query_groups", None)
    facts.pop("vocab_size", None)  # a configuration may count padding rows too
    width = facts.get("kv_channels")
    if "softmax_scale" in args and type(width) is int and width > 0:
        facts["softmax_scale"] = args["softmax_scale"] or width**-0.5
    facts.pop("rope_scaling", None)  # Megatron's is a switch
    if (scaling := _said_scaling(args, latent)) is not None:
        facts["rope_scaling"] = scaling
    if "window_size" in args:
        facts["window"] = _said_window(args)
    if "no_rope_freq" in args:
        facts["no_rope_layers"] = _said_unrotated(args)
    if (activation := _said_activation(args)) is not None:
        facts["activation"] = activation
    return facts


def normed_by_megatron(chosen: int) -> bool:
    """Whether Megatron divides the sigmoid scores of the experts chosen by their sum: not that of a single one."""
    return chosen > 1


def said_of_norms(args: Arguments) -> dict[str, bool]:
    """What arguments have to say of whether norms hold weight − 1, by each of its names; the first counts."""
    return {name: args[name] for name in CENTERED if isinstance(args.get(name), bool)}


def scaling_if_ignored(args: Arguments) -> tuple[Any, ...] | None:
    """The rotation that a model has if Megatron-LM ignored how far its arguments scale it; None where it surely did not.

    Its scripts ignore every factor of `--use-rope-scaling` but 8, and up to 0.18 STRETCHED altogether.
    """
    if ROPE in (args.get(UNSAID) or ()):
        return None
    if args.get("use_rope_scaling") and args.get("rope_scaling_factor") not in (None, BUILT_WITH):
        return ("llama3", BUILT_WITH)
    return ("default",) if args.get(STRETCHED) else None


def _said_scaling(args: Arguments, latent: bool) -> tuple[Any, ...] | None:
    if latent:
        factor = args.get("rotary_scaling_factor")
        if factor in (1, 1.0):
            return ("default",)
        if args.get("rope_type") == "rope":
            # Megatron scales the softmax by what it would scale a yarn rotation by.
            scaled = factor and args.get("mscale_all_dim")
            return ("softmax alone", factor, args["mscale_all_dim"]) if scaled else ("default",)
        yarn = [args.get(k, v) for k, v in LATENT_YARN.items()]
        return None if factor is None else ("yarn", factor, *yarn)
    kind = args.get("position_embedding_type")
    if kind == "yarn":
        return ("yarn", *_said_yarn(args))
    if args.get("use_rope_scaling") or args.get("rope_scaling") is True:
        return ("llama3", args.get("rope_scaling_factor"))
    if linear := args.get(STRETCHED) or args.get("seq_len_interpolation_factor"):
        return ("linear", linear)
    if kind in ("rope", "mrope"):
        return ("default",)
    return None if kind is None else (kind,)


def _said_yarn(args: Arguments) -> list[Any]:
    """The numbers of a yarn rotation, in the order of `YARN`; mscales that change nothing are none."""
    said = {name: args.get(f"yarn_{name}") for name, _ in YARN.values()}
    if "yarn_rotary_scaling_factor" not in args and "yarn_beta_fast" in args:
        found = ((name, args.get(word), unsaid) for name, (word, unsaid) in PARSED_YARN.items())
        said = {name: unsaid if value is None else value for name, value, unsaid in found}
    one, all_dim = said["mscale"], said["mscale_all_dim"]
    if all_dim is None or one is None or (one == 1 and not all_dim):
        said |= {"mscale": None, "mscale_all_dim": None}
    return [*said.values()]


OF_LAYERS: Mapping[str, Callable[[int, int], bool]] = {
    "no_rope_freq": lambda every, number: number % every == 0,
    "window_attn_skip_freq": lambda every, number: number % every != 0,
}
"""Arguments that say something of each layer, and what a number says of the layer with that number."""


def said_of_layers(args: Arguments, name: str) -> tuple[bool, ...]:
    """An argument that is a number or a list, as one word for every layer."""
    value, count, of_layer = args.get(name), args.get("num_layers"), OF_LAYERS[name]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(bool, value))
    if type(count) is not int or count > MAX_LAYERS or type(value) is not int or value == 0:
        return ()
    return tuple(of_layer(value, i + 1) for i in range(count))


def _said_window(args: Arguments) -> Any:
    size = args.get("window_size")
    if not isinstance(size, Sequence) or isinstance(size, str) or not size:
        return None
    layers = said_of_layers(args, "window_attn_skip_freq")
    return (*size, () if all(layers) else layers)


def _said_unrotated(args: Arguments) -> tuple[bool, ...]:
    layers = said_of_layers(args, "no_rope_freq")
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

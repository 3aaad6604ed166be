"""What Megatron-LM has to be given on its command line: `--use-checkpoint-args` takes only some of the stored arguments."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from intarsia.format.megatron.configuration.argument_table import CENTERED, PARSED_YARN
from intarsia.mesh import Shape

_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
           "rotary_scaling_factor", "mscale", "mscale_all_dim")  # fmt: skip
_LINEAR = ("linear_attention_freq", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
           "linear_num_key_heads", "linear_num_value_heads")  # fmt: skip
_NOT_TAKEN: dict[str, Any] = {
    "norm_epsilon": 1e-5, "qk_layernorm": False, CENTERED[0]: False, "multi_latent_attention": False,
    "window_size": None, "window_attn_skip_freq": None, "no_rope_freq": None, "mrope_section": None,
    "use_rope_scaling": False, "rope_scaling_factor": None, "softmax_type": "vanilla",
    "quick_geglu": False, "glu_linear_offset": 0.0, "activation_func_clamp_value": None,
    "moe_router_num_groups": None, "moe_router_group_topk": None, "moe_shared_expert_gate": False,
    "experimental_attention_variant": None, "attention_output_gate": False,
    **dict.fromkeys((*_LATENT, *_LINEAR)),
}  # fmt: skip
"""The arguments that it leaves out (0.16 to 0.20), and the value at which nothing has to be said."""

_NORM_OF_QUERIES = ".self_attention.q_layernorm.weight"
_OTHERWISE = {CENTERED[0]: "--apply-layernorm-1p"}


def options_to_give(args: Mapping[str, Any]) -> str:
    """The options that say what `--use-checkpoint-args` leaves out of these arguments.

    >>> options_to_give({"norm_epsilon": 1e-06, "qk_layernorm": True, "window_size": (7, 0)})
    '--norm-epsilon 1e-06 --qk-layernorm --window-size 7,0'
    """
    found = {name: args.get(name) for name in _NOT_TAKEN} | _yarn(args)
    said = {n: value for n, value in found.items() if value not in (None, _NOT_TAKEN.get(n))}
    words = [word for name, value in said.items() for word in _option(name, value)]
    return shlex.join(words)


def note_on_options(args: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Iterator[str]:
    """A note for whoever begins a run from arguments that no run has stored, and from tensors of these shapes."""
    width = args.get("kv_channels")
    normed = {shape[-1] for name, shape in shapes.items() if name.endswith(_NORM_OF_QUERIES)}
    if width is not None and normed - {width}:
        args = {k: v for k, v in args.items() if k != "qk_layernorm"}  # its norms span one head
    if options := options_to_give(args):
        yield (
            "Megatron-LM's --use-checkpoint-args leaves out some of what the model is, and without it"
            f" another model runs: give it {options}"
        )


def _yarn(args: Mapping[str, Any]) -> dict[str, Any]:
    """A yarn rotation without latent attention, which Megatron-LM has options for from 0.19 on."""
    if args.get("position_embedding_type") != "yarn":
        return {}
    return {word: args.get(f"yarn_{name}") for name, (word, _) in PARSED_YARN.items()}


def _option(name: str, value: Any) -> Iterator[str]:
    option = _OTHERWISE.get(name, "--" + name.replace("_", "-"))
    if isinstance(value, bool):
        yield option if value else option.replace("--", "--no-", 1)
        return
    yield option
    if name == "mrope_section":
        yield from map(str, value)
    elif isinstance(value, tuple):
        yield ",".join(map(str, value))
    else:
        yield str(value).replace(" ", "")

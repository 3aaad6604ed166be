"""Which layers of a model have which kind of attention and feed-forward part, as Transformers makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family import MAX_LAYERS

LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2")

_ALL_WINDOWED = ("ministral", "ministral3", "mistral", "mistral3", "mixtral", "phi3", "qwen3_moe")
_BY_CHOICE = ("qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_moe")
"""Families that have a window only where `use_sliding_window` says so."""

Text = Mapping[str, Any]


def layers_of(text: Text) -> range:
    """The numbers of the layers."""
    count = text.get("num_hidden_layers")
    if type(count) is int and count > MAX_LAYERS:
        raise FamilyError(
            f"the configuration gives {count:,} layers, no model has more than {MAX_LAYERS:,}"
        )
    return range(count if type(count) is int else 0)


def linear_layers(text: Text) -> list[int]:
    """Megatron's list: one for a layer with linear attention."""
    kinds = text.get("layer_types")
    if kinds:
        return [int(kind == "linear_attention") for kind in kinds]
    every = text.get("full_attention_interval") or 4
    return [int((i + 1) % every != 0) for i in layers_of(text)]


def rotated_layers(text: Text, family: str) -> list[bool]:
    """Which layers rotate their heads at all."""
    if family != "smollm3":
        return [True]
    listed = text.get("no_rope_layers")
    every = text.get("no_rope_layer_interval") or 4
    return [bool(x) for x in listed] if listed else [(i + 1) % every != 0 for i in layers_of(text)]


def windowed_layers(text: Text, family: str) -> list[bool]:
    """Which layers attend to a window only."""
    kinds, layers = text.get("layer_types"), layers_of(text)
    chosen = text.get("use_sliding_window") is True
    if not text.get("sliding_window") or (family in _BY_CHOICE and not chosen):
        return [False for _ in layers]
    if kinds:
        return [kind == "sliding_attention" for kind in kinds]
    if family in _ALL_WINDOWED:
        return [True for _ in layers]
    if family in ("gemma2", "gpt_oss"):
        return [i % 2 == 0 for i in layers]
    if family.startswith("gemma3"):
        every = text.get("sliding_window_pattern") or 6
        return [(i + 1) % every != 0 for i in layers]
    if family == "cwm":
        return [i % 4 != 0 for i in layers]
    if family == "smollm3":
        return [chosen and not rotated for rotated in rotated_layers(text, family)]
    begun = text.get("max_window_layers", 0)
    if family == "qwen2_moe":
        return [i % 2 == 0 and i < begun for i in layers]
    return [family in _BY_CHOICE and i >= begun for i in layers]


def sparse_layers(text: Text, family: str) -> int | list[int]:
    """Megatron's list: one for a layer with experts; 1 where all have them."""
    kinds = text.get("mlp_layer_types")
    if kinds:
        found = [int(kind == "sparse") for kind in kinds[: len(layers_of(text))]]
    elif family in (*LATENT, "glm4_moe"):
        dense = text.get("first_k_dense_replace", 0)
        found = [int(i >= dense) for i in layers_of(text)]
    else:
        step, dense_ = text.get("decoder_sparse_step") or 1, text.get("mlp_only_layers") or ()
        found = [int(i not in dense_ and (i + 1) % step == 0) for i in layers_of(text)]
    return 1 if all(found) else found

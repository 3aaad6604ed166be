"""A HybridModel of Megatron-core that computes what a GPTModel does, read as that GPTModel.

Its pattern gives each attention (`*`, `+`, `G`) and each feed-forward part (`-`, `E`) a layer of its own, and its
last norm has another name.  Where the two take turns, attention first, as in `*-*E`, a pair of them is a layer of
a GPTModel.  Megatron-LM itself loads a GPTModel's checkpoint into such a HybridModel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from intarsia.format.dcp.metadata import Metadata
from intarsia.format.megatron.configuration.argument_facts import OF_LAYERS, said_of_layers
from intarsia.frozen import frozen
from intarsia.planning.manifest import Stored

_LAYER = re.compile(r"(?<![^.])decoder\.layers\.(?P<place>\d{1,9})\.(?P<part>\w+)")
_NORM = re.compile(r"(?<![^.])decoder\.final_norm\.")
_ATTENTION = ("self_attention", "input_layernorm", "post_self_attn_layernorm")
_FEED_FORWARD = ("mlp", "pre_mlp_layernorm", "post_mlp_layernorm")

_PATTERNS = ("hybrid_layer_pattern", "hybrid_override_pattern")
"""The argument that alone says that a model is a HybridModel, and its older name."""

_OF_HYBRIDS = (
    "is_hybrid_model", "spec", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    "virtual_pipeline_model_parallel_size",
)  # fmt: skip


@frozen
class AsGPT:
    """The metadata of a GPTModel, and the names on disk of the tensors that have others there."""

    metadata: Metadata
    on_disk: Mapping[str, str]
    layers: int = 0

    def with_names_on_disk(self, stored: dict[str, Stored]) -> dict[str, Stored]:
        """Stored tensors that say by which names they lie on disk."""
        if not self.on_disk:
            return stored
        return {n: replace(x, key=self.on_disk.get(x.key, x.key)) for n, x in stored.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of a HybridModel."""
        if not self.on_disk:
            return ()
        return (
            f"a HybridModel of {2 * self.layers} layers, attention and feed-forward parts in turn, is read as a"
            f" GPTModel of {self.layers}: that is what is written for Megatron, and what Megatron-LM loads into"
            " a HybridModel too, given its --hybrid-layer-pattern",
        )


def as_gpt(metadata: Metadata) -> AsGPT:
    """The tensors of a HybridModel under the names of a GPTModel; those of any other model as they are."""
    parts: dict[int, set[str]] = {}
    if not any(map(_NORM.search, metadata.tensors)):
        return AsGPT(metadata, {})
    for name in metadata.tensors:
        if found := _LAYER.search(name):
            parts.setdefault(int(found["place"]), set()).add(found["part"])
    in_turn = all(
        place in parts and parts[place] <= {*(_FEED_FORWARD if place % 2 else _ATTENTION)}
        for place in range(len(parts))
    )
    if not parts or len(parts) % 2 or not in_turn:
        return AsGPT(metadata, {})
    renamed = {_of_gpt(name): record for name, record in metadata.tensors.items()}
    if len(renamed) < len(metadata.tensors):
        return AsGPT(metadata, {})
    on_disk = {name: record.name for name, record in renamed.items() if name != record.name}
    tensors = {name: replace(record, name=name) for name, record in renamed.items()}
    return AsGPT(replace(metadata, tensors=tensors), on_disk, len(parts) // 2)


def _of_gpt(name: str) -> str:
    name = _NORM.sub("decoder.final_layernorm.", name)
    return _LAYER.sub(
        lambda found: f"decoder.layers.{int(found['place']) // 2}.{found['part']}", name
    )


def gpt_arguments(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of the GPTModel that a HybridModel computes; those of any other model as they are."""
    pattern = next((args[name] for name in _PATTERNS if isinstance(args.get(name), str)), "")
    kinds = pattern.replace("|", "")
    attention, feed_forward = kinds[0::2], kinds[1::2]
    if not kinds or len(attention) != len(feed_forward):
        return args
    if not ({*attention} <= {*"*+G"} and {*feed_forward} <= {*"-E"}):
        return args
    found = dict(args) | {"num_layers": len(attention)}
    found |= {name: None for name in (*_PATTERNS, *_OF_HYBRIDS) if name in args}
    if "E" in feed_forward:
        sparse = [int(kind == "E") for kind in feed_forward]
        found["moe_layer_freq"] = 1 if all(sparse) else sparse
    if "G" in attention:
        found["linear_attention_freq"] = [int(kind == "G") for kind in attention]
    for name in OF_LAYERS:  # by its number among the layers of both kinds
        each = said_of_layers({**args, "num_layers": len(kinds)}, name)
        if len(each) == len(kinds):
            found[name] = [int(x) for x in each[0::2]]
    return found

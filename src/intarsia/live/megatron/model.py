"""The tensors of a live Megatron model, by the names that the whole model has for them.

A pipeline stage numbers its layers anew, an expert-parallel rank its experts, and every wrapper
(DDP, precision, Megatron-FSDP) adds a `module.`.  What a tensor is in the whole model follows from
the modules: a layer knows its number, a mixture of experts the numbers of its experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from torch import nn

from intarsia.errors import LayoutError, UsageError
from intarsia.format.megatron.fsdp_dtensor.keys import canonical
from intarsia.live.megatron.parallel import rank_of_axis
from intarsia.live.megatron_fsdp import ParameterSlice
from intarsia.live.model.holding import is_dtensor, placed
from intarsia.live.model.own_tensors import full_name, own_tensors

_EXPERT = re.compile(r"^(experts\.(?:local_experts\.|linear_fc[12]\.(?:weight|bias)))(\d+)(.*)$")
"""A number of an expert, counted on its rank: a module of its own, or one weight of a group."""


@dataclass(frozen=True, slots=True)
class Live:
    """A tensor of a live model: its name there, its name in the whole model, and its part of it."""

    name: str
    known: str
    tensor: Any
    item: ParameterSlice


def pipeline_models(into: Any) -> list[Any]:
    """The models of a virtual pipeline, or the one model."""
    return list(into) if isinstance(into, list | tuple) else [into]


def is_megatron(into: Any) -> bool:
    """Whether this is a model of Megatron-core's, wrapped or not, known by its configuration."""
    chunks = pipeline_models(into)
    return bool(chunks) and all(transformer_config(chunk) is not None for chunk in chunks)


def transformer_config(model: Any) -> Any:
    """The `TransformerConfig` of a Megatron model; None for any other."""
    while model is not None and hasattr(model, "named_modules"):
        config = getattr(model, "config", None)
        if hasattr(config, "tensor_model_parallel_size") and hasattr(config, "num_layers"):
            return config
        model = getattr(model, "module", None)
    return None


def live_tensors(into: Any) -> Iterator[Live]:
    """Every parameter and every lasting buffer, on this rank."""
    chunks = pipeline_models(into)
    for number, chunk in enumerate(chunks):
        prefix = f"model{number}." if len(chunks) > 1 else ""
        distribute(chunk)
        paths = [(unwrapped_path(path), module) for path, module in chunk.named_modules()]
        modules, seen = dict(paths), set[str]()
        for path, module in paths:
            for leaf, tensor in own_tensors(module):
                name = full_name(path, leaf)
                if name in seen:
                    raise UsageError(
                        f"two tensors of the model are `{name}` without the names of wrappers",
                        hint="rename the parameter of the wrapper",
                    )
                seen.add(name)
                known = canonical(_global(name, modules))
                yield Live(prefix + name, known, tensor, _item(tensor, module, leaf, name))


def distribute(model: nn.Module) -> None:
    """Have Megatron-FSDP show its shards: within a step it shows gathered parameters."""
    _call(model, "_replace_param_with_distributed_if_needed")


def install(into: Any) -> None:
    """Have Megatron-FSDP round its main weights to the weights that it computes with."""
    for chunk in pipeline_models(into):
        _call(chunk, "install_optimized_model_weights")


def _call(model: nn.Module, method: str) -> None:
    for module in model.modules():
        call = getattr(type(module), method, None)
        if call is not None:
            call(module)


def unwrapped_path(path: str) -> str:
    """A path without wrappers: the last of the modules that share a path is the wrapped one."""
    return ".".join(dropwhile("module".__eq__, path.split(".")))


def _global(name: str, modules: dict[str, Any]) -> str:
    """A name with its layer and its expert numbered as in the whole model."""
    words = name.split(".")
    found = list(words)
    for end in range(1, len(words)):
        module = modules.get(".".join(words[:end]))
        layer = getattr(module, "layer_number", None)
        if layer is not None and words[end - 2 : end - 1] == ["layers"]:
            found[end - 1] = str(layer - 1)
        experts = getattr(module, "local_expert_indices", None)
        if experts is not None and (at := _EXPERT.match(".".join(words[end:]))):
            rest = f"{at[1]}{experts[int(at[2])]}{at[3]}"
            found[end:] = rest.split(".")
    return ".".join(found)


def _item(tensor: Any, module: Any, leaf: str, name: str) -> ParameterSlice:
    """The part that a tensor is: a slice of Megatron-FSDP's, or a tensor-parallel part."""
    if is_dtensor(tensor) and hasattr(tensor, "megatron_fsdp_dist_index"):
        return ParameterSlice.of(tensor)
    tp, axis, rank = rank_of_axis(tensor, module, leaf, name)
    if tp > 1 and is_dtensor(tensor) and "tp" in (tensor.device_mesh.mesh_dim_names or ()):
        raise LayoutError(
            f"`{name}` is {placed(tensor)}: its shape is that of all ranks, and its module has"
            f" {tp} tensor-parallel parts",
            hint="give the model as Megatron or torch's fully_shard wrapped it",
        )
    return ParameterSlice(tuple(tensor.shape), 0, tensor.numel(), tp, axis, rank)


def refuse_optimizer(optimizer: Any) -> None:
    """Raise where an optimizer is given: its state lies in buffers that only Megatron knows."""
    if optimizer is not None:
        raise UsageError(
            "the optimizer of a Megatron model cannot be loaded or saved with it",
            hint="for Megatron-FSDP, intarsia.live.megatron_load.load_parameters fills the states;"
            " otherwise convert to Megatron's own format and load that",
        )

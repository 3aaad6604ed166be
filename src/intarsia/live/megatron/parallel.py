"""How tensor parallelism cuts a parameter of a live Megatron model, according to its modules.

The attributes that Megatron hangs on parameters (`tensor_model_parallel`, `partition_dim`) are not
always there, and not always true: a model built without initialisation lacks them, and
TransformerEngine sets them on weights that every rank has whole.  So the module is asked first.
"""

from __future__ import annotations

import sys
from typing import Any

from intarsia.errors import UsageError

RankOfAxis = tuple[int, int | None, int]
"""How many ranks cut a tensor, on which axis (None: where the family's table says), and which
of them this is."""

WHOLE: RankOfAxis = (1, None, 0)


def rank_of_axis(tensor: Any, module: Any, leaf: str, name: str) -> RankOfAxis:
    """How a module's parameter is cut, and which part of it this rank has."""
    is_cut, axis = _cut(tensor, module, leaf)
    if not is_cut:
        return WHOLE
    size, rank = _ranks(module, name)
    return (size, axis, rank) if size > 1 else WHOLE


def _cut(tensor: Any, module: Any, leaf: str) -> tuple[bool, int | None]:
    weight = leaf.startswith("weight")
    if hasattr(module, "parallel_mode"):  # TransformerEngine's
        if not leaf.startswith(("weight", "bias")):
            return False, None
        if module.parallel_mode == "column":
            return True, 0
        if module.parallel_mode == "row":
            return weight, 1
        return bool(getattr(module, "explicit_expert_comm", False)), None
    if any(hasattr(module, f"{x}_per_partition") for x in ("num_embeddings", "output_size")):
        return True, 0
    if hasattr(module, "input_size_per_partition"):
        return weight, 1
    if getattr(tensor, "tensor_model_parallel", False):
        return True, max(getattr(tensor, "partition_dim", 0), 0)
    return False, None


def _ranks(module: Any, name: str) -> tuple[int, int]:
    """The size of the group that cuts a module's parameters, and this rank's place in it."""
    for attribute in ("_tp_group", "tp_group"):
        group = getattr(module, attribute, None)
        if group is not None:
            return group.size(), group.rank()
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.is_initialized():
        raise UsageError(
            f"`{name}` is sharded by tensor parallelism, and neither its module nor Megatron's"
            " parallel state says over which ranks",
            hint="call megatron.core.parallel_state.initialize_model_parallel first",
        )
    if ".experts." in name:
        return (
            state.get_expert_tensor_parallel_world_size(),
            state.get_expert_tensor_parallel_rank(),
        )
    return state.get_tensor_model_parallel_world_size(), state.get_tensor_model_parallel_rank()

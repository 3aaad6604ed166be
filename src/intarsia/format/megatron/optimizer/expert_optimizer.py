"""Whether Megatron trains experts by an optimizer of their own.

Megatron-core does so where experts are parallel; from 0.19 on also where they are cut otherwise than the rest,
with `--expert-tensor-parallel-size` unlike `--tensor-model-parallel-size`.  It loads only what it would save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from intarsia.mesh import Mesh


def experts_apart(mesh: Mesh, *, later: bool) -> bool:
    """Whether a run on a mesh has a second optimizer; `later` is the rule of Megatron-core 0.19 on."""
    return mesh.ep > 1 or (later and mesh.etp != mesh.tp)


def saved_later(args: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> bool:
    """Whether only the later rule explains the groups that a run saved."""
    sizes = [args.get(f"{name}_model_parallel_size") for name in ("expert", "tensor")]
    cut = args.get("expert_tensor_parallel_size")
    apart = any(group.get("is_expert_parallel") for group in groups)
    return apart and sizes[0] == 1 and cut is not None and cut != sizes[1]


def note_on_experts(mesh: Mesh, *, apart: bool) -> Iterator[str]:
    """A note where the versions of Megatron differ about a mesh, and what was written."""
    if mesh.ep == 1 and mesh.etp != mesh.tp:
        which = "before 0.19, and not by later ones"
        if apart:
            which = "from 0.19 on, and not by earlier ones"
        yield (
            f"experts are cut by etp={mesh.etp}, the rest by tp={mesh.tp}, and only"
            " Megatron-core 0.19 and later trains such experts with an optimizer of their own:"
            f" this optimizer state is loaded by Megatron-core {which}; --megatron-lr writes it"
            f" for 0.19 and later, and etp={mesh.tp} in --mesh for either"
        )

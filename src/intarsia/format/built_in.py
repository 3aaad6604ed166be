"""The formats that come with Intarsia, one line each; the more particular come first."""

from __future__ import annotations

from typing import NamedTuple


class BuiltIn(NamedTuple):
    """Where the class of a format is; `marks` are names, one of which lies in every such folder.

    The code of a format is loaded where a mark is found; one without marks is always asked.  `detector`
    is a function that looks closer before, where marks alone say little.
    """

    module: str
    name: str
    marks: tuple[str, ...] = ()
    detector: str = ""


_SHARDED = (
    ".metadata", "latest_checkpointed_iteration.txt", "iter_*", "release", "mp_rank_*",
    "pytorch_model_fsdp_*",
)  # fmt: skip

BUILT_IN = {
    "fsdp_dtensor": BuiltIn(
        "megatron.fsdp_dtensor.checkpoint",
        "FsdpDtensor",
        _SHARDED,
        "megatron.detection.is_fsdp_dtensor",
    ),
    "torch_dist": BuiltIn(
        "megatron.torch_dist.checkpoint",
        "TorchDist",
        _SHARDED,
        "megatron.detection.looks_like_megatron",
    ),
    "dcp": BuiltIn("dcp.checkpoint", "Dcp", _SHARDED),
    "hf": BuiltIn("hf.checkpoint", "Hf"),
}
LIVE = "dcp"
"""The format that live models are saved in."""

NAMES = tuple(reversed(BUILT_IN))
"""The names of the formats, the general ones first."""

DIALECTS = {
    "same": "same (as stored)",
    "hf": "hf (as on the hub)",
    "hf-fused": "hf-fused (3-D experts)",
    "hf-module": "hf-module (as the Transformers module)",
    "megatron": "megatron",
}
"""How the tensors of a model are named and fused, each with what it is for those who do not know it."""

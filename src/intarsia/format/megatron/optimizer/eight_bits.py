"""Which buffers of Megatron's optimizer a parameter is in, where weights are kept in eight bits or fewer.

Such weights (`--fp8-param-gather`) have buffers of bytes, and are stored as the bf16 numbers that they stand for:
TransformerEngine's linear modules have them.  Where a run kept some layers in bf16, nothing fits, and that is said.
"""

from __future__ import annotations

from collections.abc import Collection

from intarsia.format.megatron.keys import Key
from intarsia.planning.manifest import Stored

_BYTES = "uint8"
_IN_BF16 = ("router.weight", "gate_weight")
"""Matrices of layers that are no linear module's of TransformerEngine."""


def is_of_type(stored: Stored, kind: str, kinds: Collection[str]) -> bool:
    """Whether a parameter is in the buffers of an element type, which are one of several."""
    if _BYTES in kinds and _is_linear(stored):
        return kind == _BYTES
    return stored.dtype.torch == kind


def why_unfit(kinds: Collection[str]) -> str:
    """Why parameters may not fit buffers of these element types."""
    frozen = "frozen parameters have no place in buckets, and nothing says which they are"
    bf16 = "buckets of a run in eight bits are read where it kept no layer in bf16 (--first-last-layers-bf16)"
    return f"{bf16}; {frozen}" if _BYTES in kinds else frozen


def _is_linear(stored: Stored) -> bool:
    key = Key.parse(stored.name)
    return bool(key.head) and len(stored.shape) == 2 and not key.rest.endswith(_IN_BF16)

"""Which buffers of Megatron's optimizer a parameter is in, where weights are kept in eight bits or fewer.

Such weights (`--fp8-param-gather`) have buffers of bytes, and are stored as the bf16 numbers that they stand for:
TransformerEngine's linear modules have them, but those of layers that the run keeps in bf16.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from intarsia.family import MAX_LAYERS
from intarsia.format.megatron.keys import Key
from intarsia.planning.manifest import Stored

_BYTES = "uint8"
_IN_BF16 = ("router.weight", "gate_weight")
"""Matrices of layers that are no linear module's of TransformerEngine."""


def layers_in_bf16(args: Mapping[str, Any]) -> frozenset[int]:
    """The layers that a run keeps in bf16, as its arguments say (`--first-last-layers-bf16`).

    >>> sorted(layers_in_bf16({"num_layers": 8, "first_last_layers_bf16": True, "num_layers_at_end_in_bf16": 2}))
    [0, 6, 7]
    """
    layers = args.get("num_layers")
    ends = [args.get(f"num_layers_at_{end}_in_bf16", 1) for end in ("start", "end")]
    counts = [n if type(n) is int and 0 <= n <= MAX_LAYERS else None for n in (layers, *ends)]
    if args.get("first_last_layers_bf16") is not True or None in counts:
        return frozenset()
    count, first, last = (n or 0 for n in counts)
    return frozenset(i for i in range(count) if i < first or i >= count - last)


def is_of_type(
    stored: Stored, kind: str, kinds: Collection[str], in_bf16: Collection[int] = ()
) -> bool:
    """Whether a parameter is in the buffers of an element type, which are one of several.

    `in_bf16` are the layers that the run keeps so.
    """
    if _BYTES in kinds and _is_linear(stored, in_bf16):
        return kind == _BYTES
    return stored.dtype.torch == kind


def why_unfit(kinds: Collection[str]) -> str:
    """Why parameters may not fit buffers of these element types."""
    frozen = "frozen parameters have no place in buckets, and nothing says which they are"
    bf16 = (
        "buckets of a run in eight bits are read where it kept no layer in bf16 but those that its arguments name"
        " (--first-last-layers-bf16)"
    )
    return f"{bf16}; {frozen}" if _BYTES in kinds else frozen


def _is_linear(stored: Stored, in_bf16: Collection[int]) -> bool:
    key = Key.parse(stored.name)
    if (
        key.layer in in_bf16 and "mtp" not in key.head
    ):  # layers that predict further tokens are no last ones
        return False
    return bool(key.head) and len(stored.shape) == 2 and not key.rest.endswith(_IN_BF16)

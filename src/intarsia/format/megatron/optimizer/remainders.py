"""Main weights stored as the half that bf16 weights lack, as Megatron's precision-aware optimizer keeps them.

Buckets hold it as int16.  State that is stored by parameter holds the same whole numbers in fp32, under the name
of the main weights: there only the numbers themselves tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from intarsia.dtypes import BY_NAME
from intarsia.errors import FormatError
from intarsia.format.megatron.named_tensors import MegatronTensors
from intarsia.planning.manifest import Chunk, Stored
from intarsia.state.names import MASTER, kind_of, master_of, parameter_of
from intarsia.value import Remainder
from intarsia.value.bits import Bits, as_float64
from intarsia.value.cast import cast

_BF16, _I16, _F32 = (BY_NAME[name] for name in ("BF16", "I16", "F32"))
_LOOKED_AT = 8
"""So many tensors are looked at before all of them are taken for what they are called."""

Read = Callable[[Stored, Chunk], Bits]
"""Gives the elements of a chunk."""


def may_be_remainders(args: Mapping[str, Any]) -> bool:
    """Whether a run may have stored remainders in fp32: one that does not say how it trains may have."""
    return not args or bool(args.get("use_precision_aware_optimizer"))


def join_remainders(found: MegatronTensors, read: Read | None) -> dict[str, Stored]:
    """Make remainders the main weights that they are with the weights; the result are those weights, as their parts.

    `read` is there where numbers in fp32 are to be looked at.
    """
    holders = {n: s for s in found.stored.values() for n in s.layout.tensors}
    masters = [s for s in (*found.stored.values(), *found.copies) if kind_of(s.name) == MASTER]
    weights = {id(s): _weight_of(s, holders) for s in masters}
    halves = [s for s in masters if s.dtype == _I16]
    rounded = [s for s in masters if s.dtype == _F32 and weights[id(s)] is not None]
    if read is not None and not halves and _are_whole(rounded, weights, read):
        halves = rounded
    if not halves:
        return {}
    if alone := [s for s in halves if weights[id(s)] is None]:
        why = _without_weight(alone)
        found.cannot_name(why, [s.on_disk for s in alone], "in remainders")
        return {}
    parts: dict[str, Stored] = {}
    made: dict[int, Stored] = {}
    for s in halves:
        weight = weights[id(s)]
        assert weight is not None
        parts[weight.name] = replace(weight, layout=weight.layout.rename(master_of))
        made[id(s)] = replace(s, value=Remainder(weight.name, s.value))
        for name in s.layout.tensors:
            found.logical[name] = replace(found.logical[name], dtype=_F32)
    found.stored = {name: made.get(id(s), s) for name, s in found.stored.items()}
    found.copies = [made.get(id(s), s) for s in found.copies]
    found.notes.append(
        "main weights are stored as what bf16 weights lack of them, and read as the fp32 numbers that both make:"
        " Megatron-LM goes on from those without --use-precision-aware-optimizer"
    )
    return parts


def _weight_of(master: Stored, holders: Mapping[str, Stored]) -> Stored | None:
    """The stored tensor that is rounded from all of a main weight."""
    found = {id(s): s for n in master.layout.tensors if (s := holders.get(parameter_of(n)))}
    if len(found) != 1:
        return None
    ((_, weight),) = found.items()
    return weight if weight.dtype == _BF16 else None


def _without_weight(alone: Iterable[Stored]) -> FormatError:
    names = [s.on_disk for s in alone]
    return FormatError(
        f"`{names[0]}` is {_I16}, what a bf16 weight lacks of its main weight, and it has no one bf16 weight"
        f" ({len(names)} tensors of optimizer state)",
        hint="convert with --optimizer drop, or save again without --use-precision-aware-optimizer",
        tensors=tuple(names),
    )


def _are_whole(masters: list[Stored], weights: Mapping[int, Stored | None], read: Read) -> bool:
    """Whether numbers that are called main weights are whole ones, which their weights are not rounded from."""
    for master in sorted(masters, key=lambda s: s.layout.size)[:_LOOKED_AT]:
        weight = weights[id(master)]
        for chunk in master.chunks[:1]:
            twins = [c for c in weight.chunks if c.box == chunk.box] if weight else []
            if weight is None or not twins or not chunk.box.size:
                continue
            bits = read(master, chunk)
            numbers = as_float64(bits, _F32)
            if not np.array_equal(numbers, numbers.astype(np.int16)):
                return False
            if not np.array_equal(cast(bits, _F32, _BF16), read(weight, twins[0])):
                return True
    return False

"""Small parts of quantised weights whose content says what the weight is: orders of groups, shapes, states.

A loader takes them at their word: a column whose group has no scale gets another's, or memory of anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.fault import Fault, with_more
from intarsia.checkpoint import Checkpoint
from intarsia.errors import FormatError, IntarsiaError, few
from intarsia.family import table_for
from intarsia.format.strict_json import parse_json
from intarsia.mesh import Box, Shape
from intarsia.planning.manifest import Manifest
from intarsia.quantised import PartRole, QuantisedWeight, WeightPart

Whole = NDArray[Any]


def part_faults(manifest: Manifest, known: Collection[str] = ()) -> Iterator[Fault]:
    """Parts that contradict the others of their weight, like ones as one; those in `known` are reported elsewhere."""
    table = table_for(manifest.config)
    rows = table.known if table else {}
    kinds: dict[str, list[tuple[WeightPart, str]]] = {}
    with Checkpoint(manifest) as checkpoint:
        for w, part, wrong_in in _telling(manifest, known):
            shape = rows[w.of].layout.shape if w.of in rows else None
            # What cannot be read, and elements that no chunk holds, are faults of their own.
            try:
                if text := wrong_in(w, part, _read(checkpoint, part), shape):
                    kinds.setdefault(part.word, []).append((part, text))
            except IntarsiaError as error:
                error.raise_unless_fault()
    for like in kinds.values():
        names = tuple(part.name for part, _ in like)
        files = few(manifest.files_of(names))
        yield Fault("parts-contradict", names, files, with_more(like[0][1], like))


Judge = Callable[[QuantisedWeight, WeightPart, Whole, Shape | None], str]


def _telling(
    manifest: Manifest, known: Collection[str]
) -> Iterator[tuple[QuantisedWeight, WeightPart, Judge]]:
    """The parts whose content says something of the others, with what judges it."""
    for kind in manifest.quantised.alike:
        if any(map(_judge_of, kind.first.others)):
            for w in kind.weights:
                for part in w.others:
                    judge = _judge_of(part)
                    if judge and not any(p.name in known for p in w.parts):
                        yield w, part, judge


def _judge_of(part: WeightPart) -> Judge | None:
    if part.dtype.floating:
        return None
    if part.role is PartRole.ORDER:
        return _wrong_order
    return {"_shape": _wrong_shape, ".quant_state": _wrong_state}.get(part.word)


def _read(checkpoint: Checkpoint, part: WeightPart) -> Whole:
    raw = checkpoint.read_box(checkpoint.prover.tensor(part.name), Box.whole(part.shape))
    signed = "i" if part.dtype.name.startswith("I") else "u"
    return raw.view(f"<{signed}{part.dtype.itemsize}")


def _wrong_order(w: QuantisedWeight, part: WeightPart, held: Whole, _: Shape | None) -> str:
    """Groups that have no scale; compressed-tensors has -1 throughout where there is no order."""
    scale = next((p for p in w.others if p.role is PartRole.SCALE and p.shape), None)
    if scale is None or not held.size:
        return ""
    groups = scale.shape[0] if w.form == "qweight" else scale.shape[-1]
    unset = part.word == "_g_idx" and bool((held == -1).all())
    outside = np.flatnonzero((held < 0) | (held >= groups))
    if unset or not outside.size:
        return ""
    at = int(outside[0])
    return (
        f"`{part.name}` puts {outside.size:,} of {held.size:,} columns into groups that do not exist: column"
        f" {at:,} into group {int(held[at])}, and `{scale.name}` has {groups:,} groups"
    )


def _wrong_shape(w: QuantisedWeight, part: WeightPart, held: Whole, model: Shape | None) -> str:
    """A shape that compressed-tensors cuts its unpacked codes to, which must be theirs."""
    stored, scheme = w.main.shape, w.scheme
    said = tuple(int(n) for n in held)
    of = f"`{part.name}` says {list(said)}"
    if len(said) != len(stored) or said[:-1] != stored[:-1] or not _packs(said[-1], stored[-1], w):
        return f"{of}, which codes of shape {list(stored)} (`{w.main.name}`) do not have"
    scale = next((p for p in w.others if p.role is PartRole.SCALE), None)
    grouped = scheme is not None and scheme.per == "group" and scheme.group
    if scale and grouped and scale.shape[-1:] != (-(-said[-1] // grouped),):
        return f"{of}, which `{scale.name}` {list(scale.shape)} does not cut into groups of {grouped}"  # fmt: skip
    return f"{of}, the configuration gives {list(model)}" if model and said != model else ""


def _packs(columns: int, words: int, w: QuantisedWeight) -> bool:
    """Whether so many columns take so many words: bits one after another, or as many whole codes as a word holds."""
    bits = (w.scheme.bits,) if w.scheme and w.scheme.bits else range(1, 9)
    word = w.main.dtype.itemsize * 8
    return any(words in (-(-columns * n // word), -(-columns // (word // n))) for n in bits)


def _wrong_state(w: QuantisedWeight, part: WeightPart, held: Whole, model: Shape | None) -> str:
    """What bitsandbytes says of four bits in JSON: type, shape and blocks."""
    said = None
    with suppress(FormatError):
        said = parse_json(held.tobytes(), part.name, unique=False)
    if not isinstance(said, dict):
        return f"`{part.name}` is no JSON, in which bitsandbytes keeps what its codes are"
    of, named = f"`{part.name}` says", part.name.rpartition("__")[2]
    if said.get("quant_type", named) != named:
        return f"{of} {said['quant_type']!r}, its name {named!r}"
    codes, shape = prod(w.main.shape) * w.main.dtype.itemsize * 2, said.get("shape")
    size = codes
    if isinstance(shape, list) and all(type(n) is int for n in shape):
        size = prod(shape)
        if codes not in (size, size + 1):
            return f"{of} {shape}, and `{w.main.name}` holds {codes:,} codes"
        if model and tuple(shape) != model:
            return f"{of} {shape}, the configuration gives {list(model)}"
    scales = {p.word: p for p in w.others}
    for word, key in ((".absmax", "blocksize"), (".nested_absmax", "nested_blocksize")):
        block, scale = said.get(key), scales.get(word)
        if scale is None or type(block) is not int or block < 1:
            continue
        if (blocks := -(-size // block)) != (size := prod(scale.shape)):
            return f"{of} blocks of {block}, which are {blocks:,}, and `{scale.name}` has {size:,}"
    return ""

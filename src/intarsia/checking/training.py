"""Faults of optimizer state: main weights, moments and steps that contradict each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.fault import Fault, few
from intarsia.checking.naming import place_of, state_of
from intarsia.checking.seen import Seen
from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError
from intarsia.planning.manifest import Logical, Manifest
from intarsia.planning.window import windows
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress, counting
from intarsia.run.values import Bits, as_float64, bits_dtype, cast

_FP16_LACKS, _BF16_LACKS = 0x1FFF, 0xFFFF
"""The bits of fp32 that are zero in numbers of 16 bits."""

_LAST_BIT = {"BF16": 2.0**-7, "F16": 2.0**-10}
"""What the last bit of a number between one and two is worth."""


def _steps(found: Sequence[Seen]) -> dict[str, float]:
    """The counters of parameters' steps."""
    return {
        stored.name: seen.value
        for seen in found
        for stored in seen.item.names
        if place_of(stored.name).kind == "step" and seen.value is not None
    }


def steps_that_disagree(found: Sequence[Seen]) -> Iterator[Fault]:
    """Dense parameters at different steps; an expert may be behind, never ahead."""
    steps = _steps(found)
    late = _unfrozen_later(steps)
    dense = {n: v for n, v in steps.items() if place_of(n).expert is None and n not in late}
    if not dense:
        return
    usual, _ = Counter(dense.values()).most_common(1)[0]
    wrong = [name for name, v in dense.items() if v != usual]
    wrong += [n for n, v in steps.items() if n not in dense and n not in late and v > usual]
    if wrong:
        text = f"{few(wrong)} at step {steps[wrong[0]]:g}, the others at {usual:g}"
        yield Fault("steps-disagree", tuple(wrong), f"{len(wrong)} of {len(steps)} steps", text)


def notes_on_steps(found: Sequence[Seen]) -> Iterator[str]:
    """Parts of a model that are steps behind as a whole."""
    steps = _steps(found)
    behind = {place_of(n).template.partition("*")[0]: steps[n] for n in _unfrozen_later(steps)}
    for stack, step in behind.items():
        yield f"all of {stack}* is at step {step:g}, behind the rest, as what is unfrozen later is"


def _unfrozen_later(steps: Mapping[str, float]) -> set[str]:
    """The counters of whole stacks of layers that are behind together: those were trained later."""
    stacks: dict[str, list[str]] = {}
    for name in steps:
        if place_of(name).layer is not None:
            stacks.setdefault(place_of(name).template.partition("*")[0], []).append(name)
    most = max(steps.values(), default=0.0)
    found: set[str] = set()
    for names in stacks.values() if len(stacks) > 1 else ():
        held = {steps[name] for name in names}
        layers = {place_of(name).layer for name in names}
        if len(held) == 1 and held < {*steps.values()} and max(held) < most and len(layers) > 1:
            found.update(names)
    return found


def rounded_masters(found: Sequence[Seen]) -> Iterator[Fault]:
    """Main weights of trained parameters of which not one uses what fp32 adds to 16 bits.

    A first step may have a learning rate of zero, so what it leaves is as it was loaded.
    """
    if any(0 <= v <= 1 for v in _steps(found).values()):
        return
    moved = {
        state_of(name)[1]
        for seen in found
        if "exp_avg_sq" in seen.item.kinds and seen.most
        for stored in seen.item.names
        for name in stored.layout.tensors
    }
    names: list[str] = []
    elements = masters = wrong = used = 0
    for seen in found:
        stored = seen.item.stored
        if "master" not in seen.item.kinds or stored.dtype.name != "F32":
            continue
        if not any(p.telling for p in seen.portraits):
            continue
        of = [state_of(name)[1] for name in stored.layout.tensors]
        if moved.isdisjoint(of):
            continue
        masters += 1
        if not seen.used_bits & _FP16_LACKS:
            wrong += 1
            used |= seen.used_bits
            names += [f"optimizer.master.{name}" for name in of]
            elements += stored.layout.size
    if names:
        narrow = "fp16" if used & _BF16_LACKS else "bf16"
        text = f"{few(names)} hold {narrow} numbers only, though their moments show training"
        where = f"{wrong} of {masters} main weights"
        yield Fault("masters-rounded", tuple(names), where, text, elements)


def masters_that_differ(
    manifest: Manifest, found: Sequence[Seen], budget: Budget, progress: Progress | None = None
) -> Iterator[Fault]:
    """Weights that are not their main weights rounded.

    The sums of both tell, whatever their cuts; only where they disagree are both read again, and
    a last bit that is off is let pass: some train with stochastic rounding.
    """
    weights: dict[tuple[str, ...], list[int]] = {}
    masters: dict[tuple[str, ...], list[int]] = {}
    unread: set[str] = set()
    for seen in found:
        stored = seen.item.stored
        if seen.unread:
            unread.update(state_of(name)[1] for name in stored.layout.tensors)
        size = sum(chunk.box.size for chunk in seen.item.chunks)
        names = tuple(sorted(state_of(name)[1] for name in stored.layout.tensors))
        if seen.rounded is not None:
            _add(masters, names, seen.rounded, size)
        elif seen.item.kinds == {""}:
            _add(weights, names, seen.total, size)
    suspects = [
        name
        for names, sums in masters.items()
        if names in weights and weights[names][1] == sums[1] and weights[names][0] != sums[0]
        if unread.isdisjoint(names)
        for name in names
    ]
    if not suspects:
        return
    advance = counting(progress, sum(manifest.logical[name].nbytes for name in suspects))
    with Checkpoint(manifest) as checkpoint:
        for name in suspects:
            # Elements that no chunk holds are a fault of their own.
            with suppress(CoverageError):
                yield from _compare(checkpoint, manifest.logical[name], budget)
            advance(manifest.logical[name].nbytes)


def _add(sums: dict[tuple[str, ...], list[int]], names: tuple[str, ...], n: int, size: int) -> None:
    held = sums.setdefault(names, [0, 0])
    held[0] = (held[0] + n) % (1 << 64)
    held[1] += size


def _compare(checkpoint: Checkpoint, weight: Logical, budget: Budget) -> Iterator[Fault]:
    master = checkpoint.manifest.logical[f"optimizer.master.{weight.name}"]
    count, first, most = 0, "", 0.0
    for box in windows(weight.shape, master.dtype.itemsize, budget.window_bytes // 4):
        narrow, wide = (
            checkpoint.read_box(checkpoint.prover.tensor(x.name), box).view(bits_dtype(x.dtype))
            for x in (weight, master)
        )
        near = _agree(narrow, cast(wide, master.dtype, weight.dtype), weight)
        if near.all():
            continue
        if not count:
            first = str(box) if box.shape != weight.shape else "the whole tensor"
        count += int((~near).sum())
        gap = np.abs(as_float64(narrow, weight.dtype) - as_float64(wide, master.dtype))
        most = max(most, float(gap[~near].max()))
    if count:
        text = (
            f"{count:,} of {weight.size:,} elements of `{weight.name}` are not their main weight"
            f" rounded to {weight.dtype}, by up to {most:.3g}"
        )
        yield Fault("master-differs", (weight.name, master.name), first, text, count)


def _agree(a: Bits, b: Bits, weight: Logical) -> NDArray[np.bool_]:
    """Where two elements are equal but for a last bit.

    A norm may have been trained around one and be stored around zero: its last bit is then that
    of a number near one.
    """
    sign = 1 << (8 * weight.dtype.itemsize - 1)
    near: NDArray[np.bool_] = np.abs(_ordered(a, sign) - _ordered(b, sign)) <= 1
    x, y = as_float64(a, weight.dtype), as_float64(b, weight.dtype)
    near |= ~np.isfinite(x) | ~np.isfinite(y)  # a fault of its own
    if "norm" in weight.name and weight.dtype.name in _LAST_BIT:
        near |= np.abs(x - y) <= _LAST_BIT[weight.dtype.name] * (1 + np.abs(x))
    return near


def _ordered(bits: Bits, sign: int) -> NDArray[np.int64]:
    """Bits as whole numbers in the order of the numbers that they stand for."""
    wide = bits.astype(np.int64)
    return np.where(wide >= sign, sign - wide, wide)

"""Faults of optimizer state: main weights, moments and steps that contradict each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from intarsia.checking.fault import Fault
from intarsia.checking.naming import place_of
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.errors import few
from intarsia.format.optimizer_state.parameter_groups import has_megatron_groups
from intarsia.state.names import MASTER, STEP, kind_of, master_of, parameter_of

_FP16_LACKS, _BF16_LACKS = 0x1FFF, 0xFFFF
"""The bits of fp32 that are zero in numbers of 16 bits."""


def _steps(found: Sequence[ItemStats]) -> dict[str, float]:
    """The counters of parameters' steps."""
    values = ((stored.name, stats.value) for stats in found for stored in stats.item.names)
    return {n: v for n, v in values if v is not None and place_of(n).kind == STEP}


def steps_that_disagree(found: Sequence[ItemStats], entries: Iterable[str]) -> Iterator[Fault]:
    """Dense parameters at different steps; an expert may be behind, never ahead.

    Megatron, whose groups are among the `entries` then, steps an expert that no token reached, too.
    """
    steps = _steps(found)
    late = _behind(steps).keys() | _never_stepped(found, steps)
    dense = {n: v for n, v in steps.items() if place_of(n).expert is None and n not in late}
    if not dense:
        return
    usual, _ = Counter(dense.values()).most_common(1)[0]
    wrong = [name for name, v in dense.items() if v != usual]
    least = usual if has_megatron_groups(entries) else 0.0
    experts = {n: v for n, v in steps.items() if n not in dense and n not in late}
    wrong += [n for n, v in experts.items() if not least <= v <= usual]
    if wrong:
        text = f"{few(wrong)} at step {steps[wrong[0]]:g}, the others at {usual:g}"
        yield Fault("steps-disagree", tuple(wrong), f"{len(wrong)} of {len(steps)} steps", text)


def notes_on_steps(found: Sequence[ItemStats]) -> Iterator[str]:
    """Parts of a model, or models beside each other, that are steps behind as a whole."""
    steps = _steps(found)
    for part, step in {part: steps[n] for n, part in _behind(steps).items()}.items():
        yield (
            f"all of {part}* is at step {step:g}, behind the rest, as parameters are that were"
            " unfrozen later or have an optimizer of their own"
        )
    if any(steps.values()) and (still := _never_stepped(found, steps)):
        yield f"{few(sorted(still))} at step 0, with all other state zero: no gradient has reached them, or their state was lost"


def _behind(steps: Mapping[str, float]) -> dict[str, str]:
    """The part of each counter whose whole part, with a stack of layers of its own, is behind."""
    stacks: dict[str, list[str]] = {}
    for name in steps:
        if place_of(name).layer is not None:
            stacks.setdefault(place_of(name).stack, []).append(name)
    most = max(steps.values(), default=0.0)
    found: dict[str, str] = {}
    for stack, names in stacks.items() if len(stacks) > 1 else ():
        step = steps[names[0]]
        if step == most or len({place_of(name).layer for name in names}) < 2:
            continue
        for part in _parts(stack, stacks):
            inside = [n for n in steps if parameter_of(n).startswith(part)]
            if all(steps[n] == step for n in inside):
                found |= dict.fromkeys(inside, part)
                break
    return found


def _parts(stack: str, stacks: Collection[str]) -> Iterator[str]:
    """How the names begin of each part of a model in which a stack is the only one, the largest first.

    >>> [*_parts("critic.model.layers.", ["actor.model.layers.", "critic.model.layers."])]
    ['critic.', 'critic.model.', 'critic.model.layers.']
    """
    for k in range(1, len(stack) + 1):
        if stack[:k].endswith(".") and sum(s.startswith(stack[:k]) for s in stacks) == 1:
            yield stack[:k]


def _never_stepped(found: Sequence[ItemStats], steps: Mapping[str, float]) -> set[str]:
    """The counters at 0 of parameters whose other state is all zeros: no gradient has reached them."""
    begun = {parameter_of(name) for name, step in steps.items() if not step}
    still: dict[str, bool] = {}
    for stats in found if begun else ():
        for name in (n for stored in stats.item.names for n in stored.layout.tensors):
            if (of := parameter_of(name)) in begun and kind_of(name) not in ("", MASTER, STEP):
                still[of] = still.get(of, True) and not stats.most
    return {name for name in steps if still.get(parameter_of(name), False)}


def masters_of_16_bits(found: Sequence[ItemStats]) -> Iterator[Fault]:
    """Main weights of trained parameters, where not one uses the bits that fp32 adds to 16.

    A first step may have a learning rate of zero, so what it leaves is as it was loaded.
    """
    if any(0 <= v <= 1 for v in _steps(found).values()):
        return
    squares = [stats.item for stats in found if "exp_avg_sq" in stats.item.kinds and stats.most]
    moved = {parameter_of(n) for item in squares for s in item.names for n in s.layout.tensors}
    names: list[str] = []
    elements = masters = wrong = used = 0
    for stats in found:
        stored = stats.item.stored
        if MASTER not in stats.item.kinds or stored.dtype.name != "F32":
            continue
        if not any(p.telling for p in stats.matrices):
            continue
        of = [parameter_of(name) for name in stored.layout.tensors]
        if moved.isdisjoint(of):
            continue
        masters += 1
        if not stats.used_bits & _FP16_LACKS:
            wrong += 1
            used |= stats.used_bits
            names += map(master_of, of)
            elements += stored.layout.size
    if names:
        narrow = "fp16" if used & _BF16_LACKS else "bf16"
        text = f"{few(names)} hold only {narrow} numbers, though their moments show that they were trained"
        where = f"{wrong} of {masters} main weights"
        yield Fault("masters-rounded", tuple(names), where, text, elements)

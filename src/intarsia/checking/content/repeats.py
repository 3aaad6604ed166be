"""Faults of equality: experts, layers and shards that are copies, ties that are none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from intarsia.checking.content.same_content import Content, Matrix
from intarsia.checking.fault import Fault
from intarsia.checking.naming import ModelPlace, few_numbers, place_of, tensors_in
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.errors import few
from intarsia.planning.manifest import Stored
from intarsia.state.names import MASTER, kind_of, parameter_of

Experts = dict[int, Matrix]
_Stack = tuple[str, int | None, str]
"""The template of a list of modules, an expert, and a kind of state."""

_UNLIKE_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "exp_inf", MASTER, "")
"""What is never equal to a first moment: means and greatest of squares or sizes, and weights."""

_NUMBER = re.compile(r"(?<=\.)(?<!experts\.)\d+(?=\.)")


def repeat_faults(
    found: Sequence[ItemStats], tied: Mapping[str, str], content: Content
) -> Iterator[Fault]:
    """What is equal and should not be; and what should be and is not."""
    matrices = [(stats.item.stored, p) for stats in found for p in stats.matrices]
    matrices = content.confirmed(matrices)
    weights = [m for m in matrices if not m[1].unit.place.kind]
    masters = [m for m in matrices if m[1].unit.place.kind == MASTER]
    parts = (weights, masters, [m for m in matrices if m[1].unit.place.is_moment])
    for repeated in (repeated_experts, partial(repeated_layers, content)):
        # What was copied with its state is reported once, for the weights.
        equal = (part for part in parts if _has_copies(part))
        yield from next((faults for part in equal if (faults := list(repeated(part)))), ())
    shards = [fault for stats in found for fault in repeated_shards(stats, content)]
    repeated_names = {name for fault in shards for name in fault.tensors}
    # As above: state that repeats where its parameter does adds nothing.
    yield from (
        fault
        for fault in shards
        if not all(kind_of(name) and parameter_of(name) in repeated_names for name in fault.tensors)
    )
    yield from repeated_moments(matrices)
    yield from tied_that_differ(found, tied)


def repeated_moments(matrices: Sequence[Matrix]) -> Iterator[Fault]:
    """First moments that equal what else is stored of their parameter, as where one memory was used for both."""
    held: dict[tuple[str, ...], dict[str, Matrix]] = {}
    for matrix in matrices if _has_copies(matrices) else ():
        if matrix[1].telling and (of := _names(matrix)):
            kinds = held.setdefault(tuple(map(parameter_of, of)), {})
            kinds[kind_of(of[0])] = matrix
    equal: dict[str, list[Matrix]] = {}
    for kinds in held.values():
        if first := kinds.get("exp_avg"):
            same = (
                k for k in _UNLIKE_MOMENTS if k in kinds and kinds[k][1].digest == first[1].digest
            )
            for kind in [*same][:1]:
                equal.setdefault(kind, []).append(first)
    for kind, moments in equal.items():
        names = [name for moment in moments for name in _names(moment)]
        text = f"exp_avg equals {kind or 'the weight itself'} in {len(moments):,} matrices: {few(names, 2)}"
        elements = sum(p.unit.rows * p.unit.columns for _, p in moments)
        yield Fault("tensor-repeated", tuple(names), moments[0][0].chunks[0].file, text, elements)


def _has_copies(matrices: Sequence[Matrix]) -> bool:
    """Whether any two of these are equal."""
    digests = [p.digest for _, p in matrices if p.telling]
    return len({*digests}) < len(digests)


def made_by_copying(
    logical: Iterable[str], faults: Sequence[Fault]
) -> tuple[list[str], list[Fault]]:
    """Copies that a model was made of and not trained since, as notes; and the faults that are left.

    A model without moments may have been made so: all experts from one, several layers repeated.
    With moments it was trained, and training tells copies apart.
    """
    moments = any(place_of(name).is_moment for name in logical)
    layers = [fault for fault in faults if fault.kind == "layers-repeated"]
    notes, left = [], []
    for fault in faults:
        made = fault.kind == "experts-identical" or (fault in layers and len(layers) > 1)
        if made and not moments:
            how = "upcycled" if fault.kind == "experts-identical" else "made deeper"
            notes.append(f"{fault.text}, as in a model that was {how} and not trained since")
        else:
            left.append(fault)
    return notes, left


def repeated_experts(matrices: Sequence[Matrix]) -> Iterator[Fault]:
    """Experts of one layer that are equal, grouped by which are."""
    layers: dict[tuple[str, str, int | None], Experts] = {}
    for stored, p in matrices:
        place = p.unit.place
        if place.expert is not None and p.telling:
            key = (place.kind, place.template, place.layer)
            layers.setdefault(key, {})[place.expert] = (stored, p)
    wrong = {key: held for key, held in layers.items() if len(_classes(held)) < len(held)}
    if not wrong:
        return
    if len(wrong) == len(layers) and all(len(_classes(held)) == 1 for held in wrong.values()):
        names = [name for held in wrong.values() for e in sorted(held) for name in _names(held[e])]
        count = len(next(iter(wrong.values())))
        of = _in_state(wrong[next(iter(wrong))])
        text = f"all {count} experts of each layer are equal{of}, such as {few(names, 2)}"
        yield Fault("experts-identical", tuple(names), "all layers", text, _size(wrong))
        return
    by_pattern: dict[tuple[str, str], dict[Any, Experts]] = {}
    for key, held in wrong.items():
        by_pattern.setdefault(_pattern(held), {})[key] = held
    for (kind, pattern), group in by_pattern.items():
        names = [
            name
            for held in group.values()
            for same in _classes(held).values()
            if len(same) > 1
            for e in same
            for name in _names(held[e])
        ]
        where = f"layers {few_numbers(-1 if layer is None else layer for _, _, layer in group)}"
        names = list(dict.fromkeys(names))
        yield Fault(kind, tuple(names), where, f"{pattern}: {few(names, 2)}", _size(group))


def _pattern(held: Experts) -> tuple[str, str]:
    """The kind of fault that equal experts of a layer are, and which are equal, in words."""
    of = _in_state(held)
    if block := _block_of(held):
        text = f"experts repeat every {block}{of}, as where one rank's {block} were saved for all"
        return "expert-blocks-repeated", text
    same = [experts for experts in _classes(held).values() if len(experts) > 1]
    pairs = sorted((b, a) for first, *rest in same for b in rest for a in (first,))
    (lo, first), (hi, last) = pairs[0], pairs[-1]
    stretch = all(pair == (lo + k, first + k) for k, pair in enumerate(pairs))
    if len(pairs) > 1 and stretch and last < lo:
        text = f"experts [{lo}:{hi + 1}) equal experts [{first}:{last + 1}){of}"
        return "expert-blocks-repeated", f"{text}, as where one rank's were saved for another"
    listed = few([" = ".join(map(str, experts)) for experts in same], 4)
    return "experts-repeated", f"experts {listed} of a layer are equal{of}"


def _classes(held: dict[int, Matrix]) -> dict[bytes, list[int]]:
    """The numbers of the experts, or of the layers, of each content."""
    found: dict[bytes, list[int]] = {}
    for number, (_, p) in sorted(held.items()):
        found.setdefault(p.digest, []).append(number)
    return found


def _block_of(held: Experts) -> int:
    """The number of experts after which they repeat; 0 where they do not."""
    count = len(held)
    digests = [held[e][1].digest if e in held else b"" for e in range(count)]
    for n in range(1, count):
        if count % n == 0 and all(digests[e] == digests[e % n] for e in range(count)):
            return n
    return 0


def _size(groups: Mapping[Any, Experts]) -> int:
    """The elements that are copies of others."""
    return sum(
        p.unit.rows * p.unit.columns * (len(held) - len(_classes(held))) // len(held)
        for held in groups.values()
        for _, p in held.values()
    )


def repeated_layers(content: Content, matrices: Sequence[Matrix]) -> Iterator[Fault]:
    """Layers that are equal in every matrix, or in some; what all layers share is a buffer."""
    templates: dict[_Stack, dict[int, Matrix]] = {}
    for stored, p in matrices:
        if p.telling and content.holds_weights(stored):
            for key, number in _stacks(stored, p.unit.place):
                templates.setdefault(key, {})[number] = (stored, p)
    equal: dict[tuple[str, int, int], list[Matrix]] = {}
    held = Counter[tuple[str, int]]()
    for (template, _, _), layers in templates.items():
        stack = template.partition("*")[0]
        held.update((stack, layer) for layer in layers)
        for first, *copies in _classes(layers).values():
            for layer in copies:
                equal.setdefault((stack, first, layer), []).append(layers[layer])
    shared = _shared_by_all(templates)
    for (stack, first, second), tensors in sorted(equal.items()):
        whole = len(tensors) == held[stack, first] == held[stack, second] and len(tensors) > 1
        if not whole:
            tensors = [t for t in tensors if t[1].unit.place.template not in shared]
        if not tensors:
            continue
        names = [name for t in tensors for name in _names(t)]
        elements = sum(p.unit.rows * p.unit.columns for _, p in tensors)
        state = _state_of(tensors)
        what = (
            f"all {len(tensors)} matrices{state and ' of its '}{state}" if whole else few(names, 2)
        )
        text = f"layer {second} equals layer {first} in {what}"
        kind = "layers-repeated" if whole else "tensor-repeated"
        yield Fault(kind, tuple(names), f"{stack}{second}", text, elements)


def _stacks(stored: Stored, place: ModelPlace) -> Iterator[tuple[_Stack, int]]:
    """Every list of modules that a matrix is in, as the template of its name, and its number there."""
    name = parameter_of(stored.name)
    numbers = list(_NUMBER.finditer(name))
    for found in numbers:
        template = f"{name[: found.start()]}*{name[found.end() :]}"
        yield (template, place.expert, place.kind), int(found[0])
    if not numbers and place.layer is not None:
        yield (place.template, place.expert, place.kind), place.layer


def _shared_by_all(templates: Mapping[Any, Mapping[int, Matrix]]) -> set[str]:
    """Templates that hold the same in every layer: masks and tables that were saved along."""
    return {
        template
        for (template, _, _), layers in templates.items()
        if len(layers) > 1 and len({p.digest for _, p in layers.values()}) == 1
    }


def repeated_shards(stats: ItemStats, content: Content) -> Iterator[Fault]:
    """Blocks of one matrix that are equal; what a step may leave out has moments that say nothing."""
    stored = stats.item.stored
    for p in stats.matrices:
        if p.unit.place.is_moment and p.unit.place.is_rare:
            continue
        for word, repeat, length, across in (
            ("rows", p.repeated_rows, p.unit.rows, p.unit.columns),
            ("columns", p.repeated_columns, p.unit.columns, p.unit.rows),
        ):
            if repeat is None or not content.holds_weights(stored):
                continue
            (a, b), (c, d) = repeat.runs(length)
            axis = int(word == "columns")
            if not content.repeats(stored, p.unit, axis, ((a, b), (c, d))):
                continue
            if content.is_of_distances(stored, p.unit, axis, (a, b)):
                continue  # which several heads may round alike
            if axis == 1 and content.is_table(stored, p.unit):
                continue
            size = length // repeat.blocks
            every = [(k * size, (k + 1) * size) for k in range(repeat.blocks)]
            all_ = repeat.every and repeat.blocks > 2
            all_ = all_ and content.repeats(stored, p.unit, axis, every)
            text = f"{word} [{c}:{d}) of `{stored.name}` equal {word} [{a}:{b})"
            text += f", as do all {repeat.blocks} blocks" if all_ else ""
            names = tensors_in(stored, p.unit)
            yield Fault("shards-repeated", names, f"{word} [{c}:{d})", text, (d - c) * across)
            break


def tied_that_differ(found: Sequence[ItemStats], tied: Mapping[str, str]) -> Iterator[Fault]:
    """Pairs that the configuration ties, both stored in one element type and shape, not equal."""
    if not tied:
        return
    whole = {
        stored.layout.tensors[0]: (stored, stats.matrices[0])
        for stats in found
        for stored in stats.item.names
        if len(stored.layout.tensors) == 1 and len(stats.matrices) == 1
    }
    for name, twin in tied.items():
        # Layers that predict further tokens may have been trained with a head of their own.
        if name not in whole or twin not in whole or place_of(name).layer is not None:
            continue
        (a, matrix), (b, other) = whole[name], whole[twin]
        if a.dtype == b.dtype and a.shape == b.shape and matrix.digest != other.digest:
            text = f"`{name}` and `{twin}` are tied by the configuration, both stored, and differ"
            yield Fault("tied-differ", (name, twin), a.chunks[0].file, text, a.layout.size)


def _in_state(held: Experts) -> str:
    state = _state_of(held.values())
    return f" in their {state}" if state else ""


def _state_of(matrices: Iterable[Matrix]) -> str:
    """What is equal of these, where it is state: their weights are not."""
    kind = next(iter(matrices))[1].unit.place.kind
    return kind and ("main weights" if kind == MASTER else "moments")


def _names(matrix: Matrix) -> tuple[str, ...]:
    return tensors_in(matrix[0], matrix[1].unit)

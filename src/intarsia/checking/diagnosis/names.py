"""Many names of tensors in a few words: patterns, and ranges of layers and experts."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from intarsia.checking.naming import expert_of, layer_of, without_expert, without_layer
from intarsia.errors import few


def as_ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges.

    >>> as_ranges([0, 1, 2, 5, 7, 8])
    '0 to 2, 5, 7 to 8'
    """
    runs: list[list[int]] = []
    for n in sorted({*numbers}):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)


def with_numbers(what: str, numbers: Collection[int]) -> str:
    """Layers or experts with their numbers.

    >>> with_numbers("layers", {3}), with_numbers("experts", {2, 3})
    ('layer 3', 'experts 2 to 3')
    """
    return f"{what if len(numbers) > 1 else what[:-1]} {as_ranges(numbers)}"


def where(names: Iterable[str]) -> str:
    """Where tensors lie in a model, in a few words."""
    names = list(names)
    patterns = list(dict.fromkeys(without_expert(without_layer(n)) for n in names))
    text = few(patterns, 4)
    layers = {n for name in names if (n := layer_of(name)) is not None}
    experts = {n for name in names if (n := expert_of(name)) is not None}
    if layers:
        text += f"; {with_numbers('layers', layers)}"
    if experts:
        text += f"; {with_numbers('experts', experts)}"
    return text

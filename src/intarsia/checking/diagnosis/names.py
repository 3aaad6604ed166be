"""What names say of tensors: their layer, their expert, and how to list many of them briefly."""

from __future__ import annotations

import re
from collections.abc import Iterable

from intarsia.checking.naming import layer_in
from intarsia.errors import few

EXPERT = re.compile(r"\bexperts\.(\d+)\.")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def layer_of(name: str) -> int | None:
    found = layer_in(name)
    return int(found["k"]) if found else None


def expert_of(name: str) -> int | None:
    found = EXPERT.search(name)
    return int(found[1]) if found else None


def without_layer(name: str) -> str:
    found = layer_in(name)
    return f"{name[: found.start('k')]}*{name[found.end('k') :]}" if found else name


def without_expert(name: str) -> str:
    return EXPERT.sub("experts.*.", name)


def pattern(name: str) -> str:
    """A name without its numbers: `model.layers.*.mlp.up_proj.weight`."""
    return NUMBER.sub("*", name)


def numbers_in(name: str) -> tuple[int, ...]:
    """The numbers of a name: layer, then expert."""
    return tuple(int(n) for n in NUMBER.findall(name))


def listed(numbers: Iterable[int]) -> str:
    """Numbers as ranges.

    >>> listed([0, 1, 2, 5, 7, 8])
    '0 to 2, 5, 7 to 8'
    """
    runs: list[list[int]] = []
    for n in sorted({*numbers}):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)


def where(names: Iterable[str]) -> str:
    """Where tensors lie in a model, in a few words."""
    names = list(names)
    patterns = list(dict.fromkeys(without_expert(without_layer(n)) for n in names))
    text = few(patterns, 4)
    layers = {n for name in names if (n := layer_of(name)) is not None}
    experts = {n for name in names if (n := expert_of(name)) is not None}
    if layers:
        text += f"; layer{'s' if len(layers) > 1 else ''} {listed(layers)}"
    if experts:
        text += f"; expert{'s' if len(experts) > 1 else ''} {listed(experts)}"
    return text

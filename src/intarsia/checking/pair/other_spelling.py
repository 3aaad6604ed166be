"""Tensors that two checkpoints of one model store under different names of it: the hub's, older ones, the module's.

A family's table knows the names of its text part alone; of what lies beside it, such as a vision
tower, Transformers' own rules tell which names are one tensor's.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from intarsia.errors import FamilyError
from intarsia.family.config.fields import Config
from intarsia.planning.manifest import Manifest
from intarsia.state.names import like, parameter_of


def spelled_differently(
    a: Manifest, b: Manifest, only_in_a: Collection[str], only_in_b: Collection[str]
) -> dict[str, str]:
    """The names of A that have no partner, each with the one of B that is the same tensor of the model."""
    config = a.config or b.config
    if not only_in_a or not only_in_b or not config:
        return {}
    with suppress(FamilyError):  # without rules there is one spelling
        theirs = {module: name for name, module in _in_module(b, only_in_b, config).items()}
        ours = _in_module(a, only_in_a, config)
        return {name: theirs[module] for name, module in ours.items() if module in theirs}
    return {}


def _in_module(held: Manifest, names: Collection[str], config: Config) -> dict[str, str]:
    """The name that each tensor has in the Transformers module; optimizer state follows its parameter."""
    from intarsia.family.from_transformers.rules import module_rows

    weights = {of: held.logical[of] for of in map(parameter_of, names) if of in held.logical}
    rows = module_rows(config, {name: x.shape for name, x in weights.items()})
    new = {
        layout.tensors[0]: name
        for name, layout in rows.items()
        if len(layout.tensors) == 1 and weights[layout.tensors[0]].shape == layout.shape
    }
    return {name: like(name)(new[of]) for name in names if (of := parameter_of(name)) in new}

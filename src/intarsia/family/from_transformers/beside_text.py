"""What a vision-language model has beside its text part, in the names of the Transformers module or the hub.

A family's table knows the text part alone.  The names of the rest follow Transformers' own rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from intarsia.errors import FamilyError, few
from intarsia.family.config.fields import Config
from intarsia.family.rows import Param
from intarsia.family.table import HUB, Table
from intarsia.state.names import is_state, like, parameter_of


def respelled(
    rest: Iterable[Param], names: Iterable[str], table: Table, dialect: str, config: Config
) -> list[Param]:
    """The rows beside the text part in a dialect; `names` are all that the checkpoint stores."""
    held = list(rest)
    beside = [row for row in held if not is_state(row.name)]
    if not table.wrapped or not beside or dialect not in HUB:
        return held
    hub, module = table.dialects["hf"], table.dialects["hf-module"]
    stored = list(names)
    from_module = any(name in module and name not in hub for name in stored)
    if from_module == (dialect == "hf-module"):
        return held
    from intarsia.family.from_transformers.rules import (
        is_one_tensor,
        module_rows,
        table_of_hub_names,
    )

    shapes = {row.name: row.layout.shape for row in beside}
    if from_module:
        new = table_of_hub_names(config, shapes)
    else:
        new = {
            layout.tensors[0]: name
            for name, layout in module_rows(config, shapes).items()
            if is_one_tensor(layout, shapes)
        }
    lost = [row.name for row in beside if row.name not in new]
    if lost:
        raise FamilyError(
            f"{len(lost)} tensors beside the text part of {table.family} have no name in dialect {dialect!r}:"
            f" {few(lost, 4)}",
            hint="convert with --dialect same",
        )
    return [Param(_new(row.name, new), row.layout, row.rule, row.value) for row in held]


def _new(name: str, new: Mapping[str, str]) -> str:
    """A name in the other dialect; optimizer state follows its parameter."""
    of = parameter_of(name)
    return like(name)(new.get(of, of))

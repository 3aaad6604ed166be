"""A family as a table: logical tensors, and the stored tensors of each dialect over them.

A family file declares every logical tensor once, with its shape and the axis that tensor
parallelism cuts.  What a dialect stores under the same name needs no further word; what it
fuses, stacks or pads is one more line with a layout expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from intarsia.errors import FamilyError
from intarsia.layout import Layout
from intarsia.mesh import Rule, Shape

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Param:
    """One stored tensor of a dialect; each stored element is the logical one plus `shift`."""

    name: str
    layout: Layout
    rule: Rule = Rule()
    shift: float = 0.0


@dataclass
class Table:
    """The rows of a family, filled by its file from a model configuration."""

    family: str
    config: Config
    logical: dict[str, Shape] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)
    tied: dict[str, str] = field(default_factory=dict)
    dialects: dict[str, dict[str, Param]] = field(
        default_factory=lambda: {"hf": {}, "hf-module": {}}
    )

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of these whole numbers that the configuration gives."""
        for name in names:
            value = self.config.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            if value is not None:
                raise FamilyError(f"config.json: {name} is {value!r}, not a whole number")
        if default is None:
            raise FamilyError(
                f"config.json of model_type {self.family!r} does not give {' or '.join(names)}",
                hint="pass the model's own config.json with --config",
            )
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        """A yes or no of the configuration."""
        value = self.config.get(name)
        return default if value is None else bool(value)

    def tensor(
        self,
        name: str,
        *shape: int,
        rule: Rule = Rule(),
        optional: bool = False,
        dialects: Iterable[str] = ("hf", "hf-module"),
    ) -> Layout:
        """Declare a logical tensor, stored as itself in `dialects`."""
        self.logical[name] = shape
        if optional:
            self.optional.add(name)
        layout = Layout.of(name, shape)
        for dialect in dialects:
            self.dialects[dialect][name] = Param(name, layout, rule)
        return layout

    def tie(self, name: str, to: str) -> None:
        """Say that `name` shares its elements with `to`, and need not be stored."""
        self.optional.add(name)
        self.tied[name] = to

    def store(
        self, dialect: str, name: str, layout: Layout, rule: Rule = Rule(), shift: float = 0.0
    ) -> None:
        """Say that `dialect` stores `layout` under `name`."""
        self.dialects.setdefault(dialect, {})[name] = Param(name, layout, rule, shift)

    @property
    def known(self) -> dict[str, Param]:
        """Every stored name of every dialect that reading recognises."""
        return {name: p for rows in reversed(self.dialects.values()) for name, p in rows.items()}

"""A model's configuration, read field by field: each has the type and the size that it must have."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family.config.layout_defaults import layout_defaults_of

Config = Mapping[str, Any]

LAYERS = "num_hidden_layers"
MAX_LAYERS, MAX_NUMBER, MAX_TENSORS = 10_000, 1 << 31, 400_000
"""What no configuration may go beyond: the largest models have 120 layers and 70,000 tensors."""


def text_config(config: Config) -> Config:
    """The configuration of the text model, which a vision-language wrapper nests."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


@dataclass
class Fields:
    """The fields of a `config.json`; what is absent or wrong is an error that names the field."""

    family: str
    config: Config

    @property
    def text(self) -> Config:
        """The configuration of the text model."""
        return text_config(self.config)

    @property
    def wrapped(self) -> bool:
        """Whether the configuration is a vision-language wrapper's."""
        return "text_config" in self.config

    @cached_property
    def defaults(self) -> Mapping[str, int]:
        """What the model type takes for sizes that its configuration leaves out."""
        return layout_defaults_of(self.text.get("model_type"), self.config.get("model_type"))

    def value(self, name: str) -> Any:
        """A field as it is given, or as the model type has it where it is left out."""
        return self.text[name] if name in self.text else self.defaults.get(name)

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of these whole numbers that the configuration gives, or else the model type."""
        given = [name for name in names if name in self.text]
        for name in given or names:
            value = self.value(name)
            if isinstance(value, int) and not isinstance(value, bool):
                most = MAX_LAYERS if name.endswith("_layers") else MAX_NUMBER
                if not 0 <= value <= most:
                    why = "which is negative" if value < 0 else f"no model has more than {most:,}"
                    raise FamilyError(f"config.json: {name} is {_shown(value)}, {why}")
                return value
            if value is not None:
                raise FamilyError(f"config.json: {name} is {_shown(value)}, not a whole number")
        if default is None:
            raise FamilyError(
                f"config.json of model_type {self.family!r} does not give {' or '.join(names)}",
                hint="pass the model's own config.json with --config",
            )
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        """A yes or no of the configuration."""
        value = self.text.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise FamilyError(f"config.json: {name} is {_shown(value)}, neither true nor false")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers of the configuration, empty where it is absent."""
        value = self.text.get(name)
        value = () if value is None else value
        short = isinstance(value, list | tuple) and len(value) <= MAX_LAYERS
        if not short or not all(type(x) is int for x in value):
            raise FamilyError(f"config.json: {name} is {_shown(value)}, not a list of layers")
        return tuple(value)

    def kinds(
        self, name: str, allowed: Iterable[str], default: Iterable[str], *, more: bool = False
    ) -> tuple[str, ...]:
        """One word per layer, each of which the family knows; `more` of them are of layers further on."""
        value, count = self.text.get(name), self.number(LAYERS)
        if value is not None and not isinstance(value, list | tuple):
            raise FamilyError(f"config.json: {name} is {_shown(value)}, not a list of words")
        found = tuple(default) if value is None else tuple(value)
        if len(found) < count or (len(found) > count and not more):
            raise FamilyError(f"config.json: {name} has {len(found)} entries, {LAYERS} is {count}")
        allowed = tuple(allowed)
        for layer, kind in enumerate(found):
            if kind not in allowed:
                raise FamilyError(
                    f"config.json: {name}[{layer}] is {_shown(kind)}, model_type {self.family!r} has"
                    f" {', '.join(allowed)}"
                )
        return found[:count]

    def divide(self, whole_name: str, total: int, part_name: str, parts: int) -> int:
        """`total / parts`, or an error that names both fields where that leaves a rest."""
        if parts < 1 or total % parts:
            raise FamilyError(
                f"config.json: {whole_name} is {total}, which {part_name} = {parts} does not divide"
            )
        return total // parts


def _shown(value: Any) -> str:
    return reprlib.repr(value)[:200]

"""What a load or a save did, in numbers: tensors, bytes, optimizer state, settings, and what was left as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from intarsia.errors import few
from intarsia.format.optimizer_state.parameter_groups import MEMBERS
from intarsia.run.losses import Changed, summary

Settings = dict[str, Any]


@dataclass(frozen=True)
class Counts:
    """How many tensors a model and the state of its optimizer have here, and the settings of its groups.

    `without_config` names the models of a dict that have a configuration, where none is that of all.
    """

    tensors: int = 0
    state_tensors: int = 0
    hyperparameters: list[Settings] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    without_config: list[str] = field(default_factory=list)

    @staticmethod
    def of(tensors: int, states: Iterator[Mapping[str, Any]], groups: list[Settings]) -> Counts:
        found = sum(isinstance(x, torch.Tensor) for state in states for x in state.values())
        names = (MEMBERS, "param_names")
        return Counts(
            tensors, found, [{k: x for k, x in g.items() if k not in names} for g in groups]
        )


@dataclass
class Loaded:
    """What a load filled on this rank, what it read for that, and what is to be said of it."""

    path: str
    format: str
    filled: list[str] = field(default_factory=list)
    tensors: int = 0
    state_tensors: int = 0
    hyperparameters: list[Settings] = field(default_factory=list)
    cast: list[str] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    never_stepped: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    read_bytes: int = 0
    held_bytes: int = 0
    mapped_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether everything of the model and of its optimizer was filled; `kept` says what was not, and why."""
        return not self.kept

    def count(self, found: Counts) -> None:
        """Say how much was filled."""
        self.tensors, self.state_tensors = found.tensors, found.state_tensors
        self.hyperparameters = found.hyperparameters

    def __str__(self) -> str:
        first = (
            f"{_counted(self.tensors, self.state_tensors)} from {self.path} ({self.format}),"
            f" {self.read_bytes:,} bytes read for {self.held_bytes:,} held"
            + (f", {self.mapped_bytes:,} of them mapped" if self.mapped_bytes else "")
        )
        notes = (f"note     {note}" for note in self.notes)
        return "\n".join([first, *_groups(self.hyperparameters), *_kept(self.kept), *notes])


@dataclass
class Saved:
    """What a save wrote, on this rank and on all."""

    path: str
    written_bytes: int = 0
    total_bytes: int = 0
    seconds: float = 0.0
    tensors: int = 0
    state_tensors: int = 0
    hyperparameters: list[Settings] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    without_config: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What is to be said of what this rank holds and is not written as it is."""
        notes = summary(tuple(self.changed))
        if self.without_config:
            notes.append(
                "no config.json is written, as the modules do not all have the same configuration"
                f" (there is one of {few(self.without_config, 4)}): give the right one with --config where a"
                " section is converted"
            )
        return notes

    def __str__(self) -> str:
        first = (
            f"{_counted(self.tensors, self.state_tensors)} to {self.path},"
            f" {self.written_bytes:,} of {self.total_bytes:,} bytes by this rank in {self.seconds:.1f} s"
        )
        extra = [f"extra    {', '.join(self.extra)}"] if self.extra else []
        notes = (f"note     {note}" for note in self.notes)
        return "\n".join([first, *_groups(self.hyperparameters), *extra, *notes])


def _counted(tensors: int, state: int) -> str:
    return f"{tensors:,} tensors" + (f" and {state:,} of optimizer state" if state else "")


def _groups(groups: list[Settings]) -> Iterator[str]:
    for number, settings in enumerate(groups):
        set_here = {k: x for k, x in settings.items() if x is not None and x is not False}
        shown = (f"{k}={x.tolist() if hasattr(x, 'tolist') else x}" for k, x in set_here.items())
        yield f"group {number}  {', '.join(shown)}"


def _kept(kept: Mapping[str, str]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for name, why in kept.items():
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        yield f"kept     {few(names, 4)}: {why}"

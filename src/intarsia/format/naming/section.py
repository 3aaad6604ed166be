"""A section of a state dict: tensors under one key, and whether it may be another model than a second one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from intarsia.dtypes import DType
from intarsia.format.naming.wrappers import MODULE
from intarsia.mesh import Shape
from intarsia.quantity import human

TOP = "."
"""What the section without a name is called."""


APP = "app"


OWN = frozenset({APP, "model", "module", "state_dict", "model_state_dict", "model_state"})


_COPIES = "ema|swa|shadow|averaged|teacher|ref|reference|target"
"""Words by which people call a model that follows another, or stays as that was."""

_OTHERS = re.compile(rf"(?:^|[_.])({_COPIES}|student|policy|actor|critic)(?:[_.]|$)")
"""Words by which people call one of several models."""

_NOT_TRAINED = re.compile(rf"(?:^|[_.])(?:{_COPIES}|best)(?:[_.]|$)")


def may_be_trained(label: str) -> bool:
    """Whether a section has no word for a copy of the model, which no optimizer trains."""
    return _NOT_TRAINED.search(label) is None


Paths = Mapping[str, tuple[str | int, ...]]


class TensorHeader(Protocol):
    """What is known of a stored tensor from its header."""

    @property
    def shape(self) -> Shape: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def dtype(self) -> DType: ...


@dataclass
class Section:
    """Tensors under one key: their names inside it, and the prefix of these on disk."""

    label: str
    names: dict[str, str] = field(default_factory=dict)
    held: dict[str, TensorHeader] = field(default_factory=dict)
    prefixes: set[str] = field(default_factory=set)

    def add(self, key: str, name: str, prefix: str, tensor: TensorHeader) -> None:
        self.names[key] = name
        self.held[name] = tensor
        self.prefixes.add(prefix)

    @property
    def own(self) -> bool:
        """Whether a framework calls its model so."""
        return all(word in OWN for word in self.label.split(".") if word)

    @property
    def heads(self) -> tuple[str, ...]:
        """What the names of all that goes with it begin with, whatever wrapper its tensors are in."""
        return tuple({*self.prefixes, f"{self.label}."} - {"", "."})

    @cached_property
    def unwrapped(self) -> dict[str, Shape]:
        """Its shapes by names in which `module`, a wrapper's word here, is left out."""
        return {
            ".".join([w for w in name.split(".") if w != MODULE])
            if MODULE in name
            else name: t.shape
            for name, t in self.held.items()
        }

    @property
    def called_other(self) -> bool:
        """Whether it has a word for one of several models."""
        return _OTHERS.search(self.label) is not None

    def within(self, other: Section) -> bool:
        """Whether every name of it is the other's too, with the same shape."""
        return self.unwrapped.items() <= other.unwrapped.items()

    def overlaps(self, other: Section) -> bool:
        """Whether both hold a tensor of one name and shape."""
        return not self.unwrapped.items().isdisjoint(other.unwrapped.items())

    def lies_in(self, other: Section) -> bool:
        """Whether its key lies below the other's."""
        return bool(other.label) and self.label.startswith(f"{other.label}.")

    def rivals(self, other: Section) -> bool:
        """Whether both hold a tensor of one name, and neither lies inside the other."""
        apart = self is not other and not (self.lies_in(other) or other.lies_in(self))
        return apart and not self.unwrapped.keys().isdisjoint(other.unwrapped)

    def __str__(self) -> str:
        nbytes = sum(tensor.nbytes for tensor in self.held.values())
        return f"{self.label or TOP} ({len(self.names)} tensors, {human(nbytes)})"

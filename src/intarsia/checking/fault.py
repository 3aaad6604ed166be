"""A fault: what is wrong with a checkpoint, in which tensors, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """One cause, however many tensors show it.

    `kind` is a word for programs (`gate-up-swapped`), `text` a sentence for people.
    """

    kind: str
    tensors: tuple[str, ...]
    where: str
    text: str

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "tensors": list(self.tensors),
            "where": self.where,
            "text": self.text,
        }

"""A refusal and the input that provokes it.

@refusal("Two models in one checkpoint", area="sections")
def two_models(tmp: Path) -> None:
    ...  # makes the input below `tmp` and calls Intarsia, which must raise
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Provoke = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """What the user did, in a few words, and a function that does it."""

    title: str
    area: str
    provoke: Provoke


CASES: list[Case] = []


def refusal(title: str, *, area: str) -> Callable[[Provoke], Provoke]:
    """Add a case to the page of refusals."""

    def add(provoke: Provoke) -> Provoke:
        CASES.append(Case(title, area, provoke))
        return provoke

    return add

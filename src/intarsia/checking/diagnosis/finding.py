"""What was found out about one differing tensor."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from intarsia.checking.diagnosis.hypothesis import NEARLY_ALL
from intarsia.checking.diagnosis.moves import Move
from intarsia.checking.diagnosis.places import Place

UNEXPLAINED = "unexplained"
NOTHING = "nothing known explains the differences"


@dataclass(frozen=True)
class Finding:
    """A tensor, the kind of its fault, and a sentence about it.

    `key` is equal for tensors that show the same fault; `fault` is the sentence without this
    tensor's numbers.  `whole` says that nearly every element of the tensor differs.  `second` is
    what happened to the tensor besides; `place` is where it differs, if that is all that tells.
    """

    tensor: str
    kind: str
    text: str
    fault: str = ""
    key: Hashable = None
    explained: int = 0
    differing: int = 0
    whole: bool = False
    files: tuple[str, ...] = ()
    move: Move | None = None
    second: Finding | None = None
    place: Place | None = None

    @property
    def complete(self) -> bool:
        """Whether it leaves nearly nothing open."""
        return self.kind != UNEXPLAINED and self.explained >= NEARLY_ALL * self.differing

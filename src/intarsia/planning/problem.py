"""A problem: what reading the headers of a checkpoint found wrong, and could go on from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from intarsia.frozen import frozen

if TYPE_CHECKING:
    from intarsia.planning.manifest import Logical

ABSENT, FILE_LOST = "tensor-missing", "common-missing"


@frozen
class Problem:
    """What `verify` calls it, the tensors and files that it is about, and the sentence for people.

    The kind is empty where it is no fault of the checkpoint, but a limit of what can be read of it.
    """

    kind: str
    tensors: tuple[str, ...]
    files: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def absences(absent: Iterable[Logical]) -> Iterator[Problem]:
    """A problem for each tensor that should be there and is not."""
    for x in absent:
        yield Problem(ABSENT, (x.name,), (), f"`{x.name}` {list(x.shape)} is absent")

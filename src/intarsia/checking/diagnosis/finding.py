"""What was found out about one differing tensor."""

from __future__ import annotations

from collections.abc import Hashable

from intarsia.checking.diagnosis.hypotheses.moves import Move
from intarsia.checking.diagnosis.hypothesis import NEARLY_ALL, Shuffle
from intarsia.checking.diagnosis.where.whereabouts import Whereabouts
from intarsia.frozen import frozen_open
from intarsia.layout import Layout

UNEXPLAINED = "unexplained"
LOST = {"stale": "rank-stale", "zero": "rank-zero", "duplicated": "rank-duplicated", "nan": "nan"}
"""What a rank's block of such a content is called."""

NOTHING = "nothing known explains the differences"
NOT_KNOWN = "nothing known explains them"


@frozen_open
class Finding:
    """A tensor, the kind of its fault, and a sentence about it.

    `key` is equal for tensors that show the same fault; `fault` is the sentence without this
    tensor's numbers.  `moved` says that it tells of places, and `side` whose: where each element of that side lies
    in the other.  `whole` says that nearly every element of the tensor differs, `all_over` that what
    is said holds of every element, of those that are equal too.  `second` is what happened to the tensor besides.  `where` gives the rows, ranks, files and bytes,
    where these say more than the kind does.  `order` is that of all elements, where it names their places.  `of_block` is what is said of a block, without its name,
    and `known` what is known of differences that nothing explains.
    """

    tensor: str
    kind: str
    text: str
    fault: str = ""
    key: Hashable = None
    explained: int = 0
    differing: int = 0
    whole: bool = False
    all_over: bool = False
    moved: bool = False
    side: str = "B"
    files: tuple[str, ...] = ()
    move: Move | None = None
    second: Finding | None = None
    where: Whereabouts | None = None
    order: Layout | Shuffle | None = None
    of_block: str = ""
    known: str = ""

    @property
    def exact(self) -> bool:
        """Whether what it says holds of every element that differs."""
        return self.explained == self.differing

    @property
    def complete(self) -> bool:
        """Whether it leaves nearly nothing open."""
        return self.kind != UNEXPLAINED and self.explained >= NEARLY_ALL * self.differing

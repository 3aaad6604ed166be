"""What comparing two checkpoints found, as values: each difference, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from intarsia.checking.fault import Fault
from intarsia.checking.pair.non_tensors import NonTensor
from intarsia.document import Document, fields_of, in_json
from intarsia.errors import few_lines
from intarsia.frozen import frozen, frozen_open
from intarsia.state.names import is_state

if TYPE_CHECKING:
    from intarsia.checking.diagnosis.where.whereabouts import Whereabouts
    from intarsia.checking.pair.change import Number


@frozen
class Difference(Document):
    """A tensor whose elements are not the same bits in both checkpoints.

    Where the element types differ, those that are the same once rounded to the narrower one are not
    counted, unless that is all.  `where` says which rows, ranks, files and bytes, unless the kind of the difference says so.
    """

    tensor: str
    elements: int
    first: tuple[int, ...]
    max_abs: Number
    diagnosis: str
    kind: str = ""
    where: Whereabouts | None = None

    @property
    def gap(self) -> str:
        """The largest distance in words: integers exactly, others to four digits."""
        whole = isinstance(self.max_abs, int)
        return f"{self.max_abs:,}" if whole else f"{self.max_abs:.4g}"

    def __str__(self) -> str:
        at = f"first at {list(self.first)}, largest gap {self.gap}"
        return f"{self.tensor}: {self.elements:,} elements, {at}; {self.diagnosis}"


@frozen_open
class Comparison(Document):
    """Whether two checkpoints hold the same weights; true where they do."""

    a: str
    b: str
    compared: int
    elements: int
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    different: tuple[Difference, ...]
    notes: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    beside: tuple[NonTensor, ...] = ()
    damaged: tuple[Fault, ...] = ()
    """Faults of what one side stores outside of every tensor."""
    not_comparable: tuple[str, ...] = ()
    """What the two sides quantise differently, so that bits say nothing."""
    rounded: int = 0
    """Weights of one side that were compared with the other side's main weights, rounded."""

    @property
    def how(self) -> str:
        """In what sense the tensors that do not differ are equal."""
        if not self.rounded:
            return "bit by bit"
        return (
            f"bit by bit except {self.rounded:,} weights that one side stores only as main"
            " weights: these are equal once rounded; their digests differ"
        )

    @property
    def equal(self) -> bool:
        """Whether all tensors and the state of the run are the same, and nothing is damaged."""
        parted = self.only_in_a or self.only_in_b or self.not_comparable
        same = not (parted or self.different or self.damaged)
        return same and not any(each.counts for each in self.beside)

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        if self.equal:
            return f"equal: {self.compared:,} tensors, {self.elements:,} elements, {self.how}"
        lists: tuple[tuple[str, Sequence[object]], ...] = (
            ("only in A", self.only_in_a),
            ("only in B", self.only_in_b),
            ("not comparable", self.not_comparable),
            ("not equal beside the tensors", [each for each in self.beside if each.counts]),
            ("faults", (*self.damaged, *self.faults)),
        )
        different = f"different: {len(self.different):,} of {self.compared:,} tensors"
        return different + "".join(
            f"{title}{few_lines([*map(str, held)])}"
            for title, held in (
                ("", self.different),
                *((f"\n{t}: {len(x):,}", x) for t, x in lists),
            )
            if held
        )

    def as_json(self) -> dict[str, Any]:
        faults = in_json((*self.damaged, *self.faults))
        return {"equal": self.equal} | fields_of(self, but=("damaged",)) | {"faults": faults}


def next_step(found: Comparison) -> str | None:
    """Where nothing explains what differs: names may have a key before them, or it is two steps of training."""
    for side, other, outer, inner in (
        ("A", "B", found.only_in_a, found.only_in_b),
        ("B", "A", found.only_in_b, found.only_in_a),
    ):
        if key := _key_before(*({n for n in names if not is_state(n)} for names in (outer, inner))):
            return (
                f"the names in {side} are those in {other} with `{key}` before them: `--section .`"
                " compares both as they are stored"
            )
    weights = [d for d in found.different if not is_state(d.tensor)]
    alike = not (found.only_in_a or found.only_in_b or found.not_comparable or found.damaged)
    if not weights or not alike or any(d.kind != "unexplained" for d in weights):
        return None
    return (
        "if one of the two was trained further than the other, `intarsia diff A B` shows how"
        " much each tensor changed"
    )


def _key_before(outer: set[str], inner: set[str]) -> str:
    """The prefix of every name of one set; without it each is a name of the other."""
    name = min(outer, default="")
    keys = [name[: k + 1] for k, letter in enumerate(name) if letter == "."]
    return next((key for key in keys if {key + n for n in inner} == outer), "")

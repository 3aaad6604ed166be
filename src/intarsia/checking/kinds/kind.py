"""A kind of fault: what it means, what to do about it, and what the documents say of it."""

from __future__ import annotations

from intarsia.frozen import frozen


@frozen
class FaultKind:
    """What a word such as `zero-block` stands for in every report.

    `section` is the part of `docs/reference/faults.md` that lists it, if one checkpoint alone can
    show it, and `row` its text there, if that says more than `means`.  `between` is how two
    checkpoints differ that `verify A B` finds it in.
    """

    name: str
    means: str
    next: str
    section: str = ""
    row: str = ""
    between: str = ""

    @staticmethod
    def of_two(name: str, between: str, next: str) -> FaultKind:
        """A kind that only a comparison can show."""
        return FaultKind(name, f"A and B differ as if {between}", next, between=between)

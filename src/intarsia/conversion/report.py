"""What is said of a conversion once it has run."""

from __future__ import annotations

from typing import Any

from intarsia.document import Document, fields_of
from intarsia.frozen import frozen_open
from intarsia.opened.padding import TrainedPadding
from intarsia.planning.inventory import items_left_out
from intarsia.planning.plan import Plan
from intarsia.run.losses import Changed


@frozen_open
class Report(Document):
    """What a conversion did."""

    plan: Plan
    destination: str
    seconds: float
    peak_rss_bytes: int
    remarks: tuple[str, ...] = ()
    changed: tuple[Changed, ...] = ()
    padding: tuple[TrainedPadding, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of the plan, and then of the run."""
        return (*self.plan.notes, *self.remarks)

    @property
    def complete(self) -> bool:
        """Whether nothing of the source is lost; `plan.left_out` and the inventory say what, and why."""
        lost = any(tensor.lost for tensor in self.plan.left_out)
        return not (lost or items_left_out(self.plan.src.inventory))

    def as_json(self) -> dict[str, Any]:
        return self.plan.as_json() | {
            **fields_of(self, but=("plan", "remarks")),
            "complete": self.complete,
            "seconds": round(self.seconds, 3),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        notes = "".join(f"\nnote     {note}" for note in self.remarks)
        return f"{self.plan}{notes}\ndone     {self.destination} in {self.seconds:.2f} s"

"""What earlier runs of a job have written, as far as it is believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from intarsia.format.base import Arrangement
from intarsia.frozen import frozen_open
from intarsia.mesh import Box
from intarsia.planning.window import flat_start
from intarsia.run.execute import Ranges
from intarsia.run.losses import Losses
from intarsia.run.sums.hashing import merged_sums
from intarsia.run.windows.slots import Slots
from intarsia.run.windows.tally import Sums
from intarsia.run.windows.written import SlotPart, Written, unfinished_parts


@frozen_open
class Done:
    """Everything that earlier runs of a job have written."""

    records: Sequence[Written] = ()

    @property
    def nbytes(self) -> int:
        return sum(record.nbytes for record in self.records)

    @property
    def losses(self) -> Losses:
        return sum((record.losses for record in self.records), Counter())

    @property
    def sums(self) -> Sums:
        return merged_sums(record.sums for record in self.records)

    @property
    def ranges(self) -> Ranges:
        """The row-major elements of each target that are written."""
        found: dict[str, list[tuple[int, int]]] = {}
        for record in self.records:
            for target, box in record.windows:
                if box.size:
                    start = flat_start(box, Box.whole(target.shape))
                    found.setdefault(target.name, []).append((start, start + box.size))
        return found

    def unfinished(self, arrangement: Arrangement) -> list[SlotPart]:
        """Parts of slots whose wrapping needs the checksums of all of them."""
        slots = Slots(arrangement.columns)
        return [part for record in self.records for part in unfinished_parts(record, slots)]


NOTHING = Done()

"""One pass over the bytes of a checkpoint, for everything that is checked of its content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from intarsia.checking.survey.block_survey import ChunkStretch
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.item_survey import ItemSurvey, SurveyContext
from intarsia.checking.survey.items import items_of
from intarsia.checking.survey.small_items import SmallItem, SmallItems, neighbours, small_item
from intarsia.checking.survey.small_survey import survey_together
from intarsia.format.registry import folder_of, format_named
from intarsia.frozen import frozen
from intarsia.planning.manifest import Logical, Manifest
from intarsia.run.budget import MANY, Budget
from intarsia.run.progress import Progress
from intarsia.run.sharing import share_out

MOST_THREADS = 8
"""More of them hold each other up, at the interpreter's lock and in the caches: 16 on 16 cores take half as long again."""


@frozen
class StretchOfItem:
    """A stretch that a thread looks at on its own."""

    survey: ItemSurvey
    stretch: ChunkStretch

    @property
    def nbytes(self) -> int:
        return self.stretch.box.size * self.survey.item.stored.dtype.itemsize


Step = StretchOfItem | SmallItems


def survey(
    manifest: Manifest,
    budget: Budget,
    progress: Progress | None = None,
    wanted: Mapping[str, Logical] | None = None,
) -> list[ItemStats]:
    """Read every chunk once, on the budget's threads, and return what it showed.

    Of the logical tensors that are `wanted`, the sums for their digests are taken too.
    """
    budget = replace(budget, workers=min(budget.workers, MOST_THREADS))
    # A block is cast and summed in wider types: its temporaries take several times its bytes.
    block_bytes = max(1 << 16, budget.window_bytes // (8 if budget.workers < MANY else 2))
    # As much again is left for what the sums tell.
    most_sums = budget.memory_bytes // (2 * 8 * budget.workers)
    format = format_named(manifest.format)
    with folder_of(manifest) as folder:
        context = SurveyContext(
            manifest, format, folder, block_bytes, budget.stretch_bytes, most_sums, wanted or {}
        )
        found: dict[int, ItemStats] = {}
        small: list[SmallItem] = []
        steps: list[Step] = []
        for number, item in enumerate(items_of(manifest)):
            if (x := small_item(number, item, context)) is not None:
                small.append(x)
                continue
            each = ItemSurvey(item, context, budget.window_bytes)
            found[number] = each.stats
            steps += [StretchOfItem(each, stretch) for stretch in each.stretches]
        # Small ones are read into a whole window where threads would meet between many calls.
        at_once = budget.window_bytes if budget.workers >= MANY else block_bytes
        steps += neighbours(small, at_once, budget.window_bytes)

        def look(step: Step) -> Sequence[tuple[int, ItemStats]]:
            if isinstance(step, SmallItems):
                return survey_together(step, context, budget.window_bytes)
            step.survey.look(step.stretch)
            return ()

        workers = budget.workers_for(len(steps), sum([step.nbytes for step in steps]))
        done = share_out(steps, workers, look, progress=progress, nbytes=lambda step: step.nbytes)
    found.update(pair for pairs in done for pair in pairs)
    return [found[number] for number in sorted(found)]


def surveyed(found: Sequence[ItemStats]) -> tuple[int, int]:
    """How many tensors were read whole, and how many elements."""
    held, lost = set[str](), set[str]()
    for stats in found:
        for s in stats.item.names:
            (lost if stats.lost else held).update(s.layout.tensors or (s.name,))
    elements = sum(c.box.size for stats in found if not stats.lost for c in stats.item.chunks)
    return len(held - lost), elements

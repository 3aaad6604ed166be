"""Small tensors that lie near each other in a file: which they are, and which of them are surveyed together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from intarsia.checking.alone.headers import is_there
from intarsia.checking.digests.sums import is_summed
from intarsia.checking.survey.block_survey import SUM_BYTES
from intarsia.checking.survey.elements import is_plain
from intarsia.checking.survey.item_survey import SurveyContext
from intarsia.checking.survey.items import SurveyItem
from intarsia.checking.survey.wrapped_chunks import GAP_BYTES
from intarsia.frozen import frozen
from intarsia.run.sharing import in_steps
from intarsia.run.sums.runs import Run, whole_run
from intarsia.state.names import MASTER


@frozen
class SmallItem:
    """An item that is one whole matrix in one chunk, or in some that are `wrapped`, and its number among all.

    Its bytes are a run of the logical tensor `tensor`, where sums for its digest are wanted; "" elsewhere.
    """

    number: int
    item: SurveyItem
    run: Run
    tensor: str
    wrapped: bool

    @property
    def nbytes(self) -> int:
        return self.run.length_bytes

    @property
    def memory_bytes(self) -> int:
        """What its survey takes: its bytes and its sums, and its chunks with all that is in them."""
        unit, chunks = self.item.units[0], self.item.chunks if self.wrapped else ()
        sums = SUM_BYTES * (unit.rows + unit.columns)
        return self.nbytes + sums + sum([GAP_BYTES + x.length_bytes for x in chunks])


@frozen
class SmallItems:
    """Small items that one thread surveys together: of one file, or with their first chunks in it."""

    items: Sequence[SmallItem]
    wrapped: bool

    @property
    def nbytes(self) -> int:
        return sum([x.nbytes for x in self.items])


def small_item(number: int, item: SurveyItem, context: SurveyContext) -> SmallItem | None:
    """An item that is surveyed with its neighbours; None for any other."""
    if not len(item.names) == len(item.units) == 1:
        return None
    stored, unit = item.stored, item.units[0]
    dtype, layout, chunks = stored.dtype, stored.layout, item.chunks
    size = layout.size
    nbytes = size * dtype.itemsize
    if nbytes > context.block_bytes or unit.rows + unit.columns > context.most_sums:
        return None
    if not layout.mapped == size == unit.rows * unit.columns or not is_plain(dtype):
        return None
    if context.wanted and MASTER in item.kinds:
        return None  # it may be summed as the weight that it rounds to, too
    in_memory = context.manifest.in_memory_files
    wrapped = context.format.front_kind(stored) is not None
    wrapped = wrapped and not (in_memory and any(x.file in in_memory for x in chunks))
    if not wrapped and len(chunks) > 1:
        return None
    # Chunks that do not tile it would leave some of its memory as it was.
    if context.links.stored_fault(stored) is not None:
        return None
    if not all(is_there(context.manifest, chunk) for chunk in chunks):
        return None
    wanted = [context.wanted[name] for name in layout.tensors if name in context.wanted]
    if not any(is_summed(stored, x) for x in wanted):
        return SmallItem(number, item, whole_run(nbytes), "", wrapped)
    piece = layout.pieces[0]
    start_bytes = piece.to * dtype.itemsize
    if piece.run != size or not stored.value.is_plain or start_bytes % 8:
        return None
    run = Run(start_bytes, nbytes, wanted[0].nbytes)
    return SmallItem(number, item, run, piece.tensor, wrapped)


def neighbours(
    small: Sequence[SmallItem], most_bytes: int, most_wrapped_bytes: int
) -> Iterator[SmallItems]:
    """Small items of any files, those together that few calls read."""
    by_file: dict[tuple[str, bool], list[SmallItem]] = {}
    for x in small:
        by_file.setdefault((x.item.chunks[0].file, x.wrapped), []).append(x)
    for (_, wrapped), of_file in by_file.items():
        of_file.sort(key=lambda x: x.item.chunks[0].start_bytes)
        most = most_wrapped_bytes if wrapped else most_bytes
        for some in in_steps(of_file, most, lambda x: x.memory_bytes):
            yield SmallItems(some, wrapped)

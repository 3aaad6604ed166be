"""Bytes that go from files that are read to files that are written as they are, without passing through Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from intarsia.kernel import moving
from intarsia.kernel.moving import Moved, MoveError, Sides, Strips
from intarsia.store.reading.folder import Folder
from intarsia.store.system_errors import errors_naming
from intarsia.store.writing.staging import Staging

NEAR_BYTES = 64 << 10
"""Stretches of a file that were written are taken for one where less lies between them."""

Names = Sequence[str]
Numbers = NDArray[np.uint64]


def move(
    folder: Folder,
    staging: Staging,
    files: tuple[Names, Names],
    strips: Strips,
    sides: Sides,
    sums: int,
    boxes: int,
    around: Callable[[Moved], Numbers],
) -> Moved | None:
    """Move strips from files of a folder to files of a destination, sum them, and write what goes around them.

    None where so many files cannot be open; nothing is moved then.  `file` of a side is the number of one of the
    `files`, those that are read before those that are written.  `around` says what is written when all were moved:
    pieces of memory, whose rows are numbers of the files that are written, bytes of these, addresses and lengths.
    """
    read, written = files
    numbers, first = sides["file"].astype(np.int64), len(read)
    rows = np.repeat(strips["rows"], (strips["sources"] + strips["targets"]).astype(np.int64))
    lengths = sides["width"] * rows
    to = numbers >= first
    with staging.opened_together(written) as outs, folder.opened_together(read) as ins:
        if outs is None or ins is None:
            return None
        asked = sides.copy()
        asked["file"] = np.array([*ins, *outs], np.uint64)[numbers]
        try:
            found = moving.move(strips, asked, sums, boxes)
        except MoveError as stopped:
            number, start = numbers[stopped.number], int(sides["at"][stopped.number])
            if number < first:
                end = start + int(lengths[stopped.number])
                raise folder.unread(read[number], start, end, stopped.error) from stopped.error
            with errors_naming(staging.folder, written[number - first]):
                raise stopped.error from None
        pieces = around(found)
        pieces = np.ascontiguousarray(pieces[:, np.lexsort((pieces[1], pieces[0]))])
        of_pieces = pieces[0].astype(np.int64)
        pieces[0] = np.array(outs, np.uint64)[of_pieces]
        try:
            moving.write_pieces(pieces)
        except MoveError as stopped:
            with errors_naming(staging.folder, written[of_pieces[stopped.number]]):
                raise stopped.error from None
    folder.count(int(lengths[~to].sum()))
    _note(staging, written, numbers[to] - first, sides["at"][to], lengths[to])
    return found


def sum_strips(
    folder: Folder, files: Names, strips: Strips, sides: Sides, sums: int
) -> Moved | None:
    """The sums of strips, which go nowhere; None where so many files cannot be open, or one ends early."""
    numbers = sides["file"].astype(np.int64)
    with folder.opened_together(files) as ins:
        if ins is None:
            return None
        sides["file"] = np.array(ins, np.uint64)[numbers]
        try:
            found = moving.move(strips, sides, sums, 1)
        except MoveError as stopped:
            if isinstance(stopped.error, EOFError):
                return None
            raise folder.unread(files[numbers[stopped.number]], 0, 0, stopped.error) from None
    rows = np.repeat(strips["rows"], strips["sources"].astype(np.int64))
    folder.count(int((sides["width"] * rows).sum()))
    return found


def _note(
    staging: Staging, files: Names, numbers: NDArray[np.int64], at: Numbers, lengths: Numbers
) -> None:
    """Have the destination take note of what was moved to its files, near stretches as one."""
    order = np.lexsort((at, numbers))
    numbers, at, end = numbers[order], at[order], (at + lengths)[order]
    apart = (numbers[1:] != numbers[:-1]) | (at[1:] > end[:-1] + np.uint64(NEAR_BYTES))
    starts = np.flatnonzero(np.concatenate([[True], apart]))
    stops = np.append(starts[1:], len(at)) - 1
    each = zip(numbers[starts].tolist(), at[starts].tolist(), end[stops].tolist(), strict=True)
    for number, start, stop in each:
        staging.moved(files[number], start, stop - start)

"""Bytes that go from files that are read to files that are written as they are, without passing through Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import NoReturn

from intarsia.kernel import moving
from intarsia.kernel.moving import Moved, MoveError, Strip
from intarsia.store.reading.folder import Folder
from intarsia.store.system_errors import errors_naming
from intarsia.store.writing.staging import Staging


def move(folder: Folder, staging: Staging, strips: Sequence[Strip]) -> list[Moved]:
    """Move strips from files of a folder to files of a destination, and sum them; both stores can move."""
    read_bytes = Counter[str]()
    for strip in strips:
        for side in strip.sources:
            read_bytes[side.file] += strip.rows * side.width
    with ExitStack() as held:
        read = {f: held.enter_context(folder.moving(f, n)) for f, n in read_bytes.items()}
        files = dict.fromkeys(side.file for strip in strips for side in strip.targets)
        written = {f: held.enter_context(staging.moving(f)) for f in files}
        try:
            found = moving.move(strips, read, written)
        except MoveError as stopped:
            _refuse(folder, staging, strips, stopped)
    for file, start, end in _written(strips):
        staging.moved(file, start, end - start)
    return found


def _refuse(
    folder: Folder, staging: Staging, strips: Sequence[Strip], stopped: MoveError
) -> NoReturn:
    """Raise what a call that failed means for the file that it was for."""
    number = stopped.side
    for strip in strips:
        if number < len(strip.sources):
            side = strip.sources[number]
            end = side.at + strip.rows * side.width
            raise folder.unread(side.file, side.at, end, stopped.error) from stopped.error
        number -= len(strip.sources)
        if number < len(strip.targets):
            with errors_naming(staging.folder / strip.targets[number].file):
                raise stopped.error
        number -= len(strip.targets)
    raise stopped


def _written(strips: Sequence[Strip]) -> Iterator[tuple[str, int, int]]:
    """The stretches of files that were written, those that touch put together."""
    ranges = sorted(
        chain.from_iterable(
            ((side.file, side.at, side.at + x.rows * side.width) for side in x.targets)
            for x in strips
        )
    )
    file, start, end = "", 0, 0
    for here, at, stop in ranges:
        if (here, at) != (file, end):
            if end:
                yield file, start, end
            file, start = here, at
        end = stop
    if end:
        yield file, start, end

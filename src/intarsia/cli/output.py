"""What a command prints: a table for people, one JSON document for programs."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EBADF
from typing import Any, TextIO

from intarsia.errors import IntarsiaError, StoreError, visible


@dataclass
class Output:
    """How this call wants its answer."""

    json: bool = False
    quiet: bool = False
    rank: int = 0

    @property
    def prints(self) -> bool:
        """Of ranks that share a command only the first prints."""
        return self.rank == 0


OUTPUT = Output()


def answer(document: Any, text: Callable[[], None], *, is_all: bool = False) -> None:
    """Print the JSON document, or call `text` to print for people; `is_all` that the command makes."""
    if not OUTPUT.prints:
        return
    with to_stdout(is_all=is_all):
        if OUTPUT.json:
            print(json.dumps(document, indent=1, default=str))
        elif not OUTPUT.quiet:
            text()


@contextmanager
def to_stdout(*, is_all: bool = False) -> Iterator[None]:
    """Printing inside may fail: the work is done all the same, so stderr alone says so, unless this `is_all` of it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        sys.stdout = _nowhere()
    except OSError as error:
        sys.stdout = _nowhere()  # what is left to print goes nowhere
        why = "stdout is closed" if error.errno == EBADF else error.strerror or error
        lost = StoreError(f"not all of the answer was printed: {why}")
        if is_all:
            raise lost from error
        complain(f"intarsia: {lost}")


def complain(text: str) -> None:
    """Print on stderr, where that works."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = _nowhere()


def print_error(error: IntarsiaError) -> None:
    """Print what failed as a JSON document."""
    with to_stdout():
        document = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
        print(json.dumps(document))


def _nowhere() -> TextIO:
    return open(os.devnull, "r+")


def _refusing() -> TextIO:
    """A stream that refuses each write, and keeps nothing back to be refused again."""
    unwritable = io.FileIO(os.open(os.devnull, os.O_RDONLY), "w")
    return io.TextIOWrapper(unwritable, write_through=True)


def open_streams() -> None:
    """Give closed streams a file: else the next one that is opened would take their number.

    Printing to a stdout that is closed fails, as it does to a full one.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdin = sys.stdin or _nowhere()
    sys.stdout = sys.stdout or _refusing()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # it may lack characters of names and drawings
            stream.reconfigure(errors="backslashreplace")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], most: int = 0
) -> None:
    """Print rows in columns; numbers to the right, at most `most` rows where that is given.

    On a terminal the table is drawn as wide as that is, or each row is a few lines; elsewhere a row
    is one line of text.
    """
    shown = rows[:most] if most else rows
    cells = [[visible(_cell(value)) for value in row] for row in shown]
    right = [
        bool(shown) and all(isinstance(row[k], (int, float)) for row in shown)
        for k in range(len(columns))
    ]
    (_drawn if sys.stdout.isatty() else _plain)(title, columns, cells, right)
    if len(shown) < len(rows):
        print(f"… and {len(rows) - len(shown):,} more")


def _drawn(
    title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    folded = [w if numeric else min(w, _LEAST) for w, numeric in zip(widths, right, strict=True)]
    room = console.width - 3 * (len(widths) - 1)
    prose = widths[-1] > _PROSE
    if (sum(widths) > room and prose) or sum(folded) > room:
        heads = [f"{columns[0]} " if right[0] else "", *columns[1:]]
        _records(title, heads, cells, console.width, prose=prose)
        return
    out = Table(title=title or None, title_justify="left", header_style="bold", title_style="bold")
    out.box, out.pad_edge, out.show_edge = SIMPLE_HEAD, False, False
    for name, numeric in zip(columns, right, strict=True):
        out.add_column(
            name, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric
        )
    for row in cells:
        out.add_row(*map(Text, row))
    console.print(out)


_PROSE = 40
"""From here on a last cell is text to be read, which a narrow column would chop up."""

_LEAST = 12
"""A column of text may be folded to this; what is narrower would be cut, or push others out."""


def _records(
    title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], screen: int, *, prose: bool
) -> None:
    """Each row as a few lines: its name, what is in its columns, and the last one where that is `prose`."""
    from textwrap import wrap  # few answers need it

    if title:
        print(title)
    for name, *facts in cells:
        text = facts.pop() if prose else ""
        listed = ", ".join(f"{c} {v}" for c, v in zip(columns[1:], facts, strict=False) if v)
        for line, margin in ((columns[0] + name, ""), (listed, "    "), (text, "    ")):
            for each in wrap(line, screen - len(margin), break_on_hyphens=False):
                print(margin + each)


def _plain(
    title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> None:
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    if title:
        print(title)
    for row in (columns, *cells):
        padded = (
            f"{text:>{width}}" if numeric else f"{text:<{width}}"
            for text, width, numeric in zip(row, widths, right, strict=True)
        )
        print("  ".join(padded).rstrip())


def width(most: int) -> int:
    """How wide a picture may be: `most` characters, or as many as the terminal has."""
    if not sys.stdout.isatty():
        return most
    from shutil import get_terminal_size

    return min(most, get_terminal_size().columns)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(str(value))


def say(text: object) -> None:
    """Print words that may hold names out of a checkpoint."""
    print(printable(str(text)))


def printable(text: str) -> str:
    """A text without what would steer a terminal or cannot be encoded, spelled out instead.

    >>> printable("norm\\x1b[2J")
    'norm\\\\x1b[2J'
    """
    return "\n".join(map(visible, text.split("\n")))


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar of bytes, rate and time left on a terminal; silence in a pipe."""
    if OUTPUT.quiet or OUTPUT.json or not OUTPUT.prints or not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"), bars.BarColumn(), bars.DownloadColumn(binary_units=True),
        bars.TransferSpeedColumn(), bars.TimeRemainingColumn(),
    )  # fmt: skip
    with bars.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        last = 0.0

        def advance(done: int, total: int) -> None:
            nonlocal last
            if done >= total or time.monotonic() - last > 0.1:
                last = time.monotonic()
                bar.update(task, completed=done, total=total)

        yield advance

"""What a command prints: a table for people, one JSON document for programs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from intarsia.report.safe import visible


@dataclass
class Output:
    """How this call wants its answer."""

    json: bool = False
    quiet: bool = False

    @property
    def speaks(self) -> bool:
        """Only the first rank of a job speaks."""
        return os.environ.get("RANK", "0") == "0"


OUTPUT = Output()


def answer(document: Any, text: Callable[[], None]) -> None:
    """Print the JSON document, or call `text` to print for people."""
    if not OUTPUT.speaks:
        return
    if OUTPUT.json:
        print(json.dumps(document, indent=1, default=str))
    elif not OUTPUT.quiet:
        text()


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], most: int = 0
) -> None:
    """Print rows in columns; numbers to the right, at most `most` rows where that is given."""
    from rich.console import Console
    from rich.table import Table

    shown = rows[:most] if most else rows
    out = Table(title=title or None, title_justify="left", header_style="bold", title_style="bold")
    for k, name in enumerate(columns):
        numeric = bool(shown) and all(isinstance(row[k], (int, float)) for row in shown)
        out.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        out.add_row(*(visible(_cell(value)) for value in row))
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    console.print(out)
    if len(shown) < len(rows):
        console.print(f"… and {len(rows) - len(shown):,} more")


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


def facts(rows: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair a line."""
    width = max((len(name) for name, _ in rows), default=0) + 2
    for name, value in rows:
        print(f"{name:<{width}}{_cell(value)}")


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar of bytes, rate and time left on a terminal; silence in a pipe."""
    if OUTPUT.quiet or OUTPUT.json or not OUTPUT.speaks or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        last = 0.0

        def advance(done: int, total: int) -> None:
            nonlocal last
            if done >= total or time.monotonic() - last > 0.1:
                last = time.monotonic()
                bar.update(task, completed=done, total=total)

        yield advance

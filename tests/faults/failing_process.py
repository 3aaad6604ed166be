"""A process that runs commands of Intarsia, one a line, while `failing_disk.c` stands before its disk.

    python -m tests.faults.failing_process WINDOW_BYTES EAGER MOVING

It imports nothing that it need not, so that it starts at once.
"""

from __future__ import annotations

import ctypes
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

Command = Callable[[list[str]], object]


def prepare(window_bytes: int, *, eager: bool, moving: bool = False) -> None:
    """Have a small job take many steps; an eager one syncs and writes back all the time, and where it is
    `moving` small windows go from file to file, too."""
    from intarsia.run.budget import Budget
    from intarsia.run.journal import keeping as journal
    from intarsia.run.windows import strips
    from intarsia.store.local import written_files

    Budget.window_bytes = Budget.step_bytes = property(lambda _: window_bytes)  # type: ignore[assignment,method-assign]
    if moving:
        strips.LEAST_BYTES = 1
    if eager:
        journal.LEAST_SECONDS, journal.REST = 0.0, 0
        written_files.WRITEBACK_BYTES = 1


@contextmanager
def meetings(shim: ctypes.CDLL) -> Iterator[list[int]]:
    """The counts of calls at which the blocks that ranks end together begin and end, as they do so."""
    from intarsia.run.ranks.crew import Crew, Shared

    together, marks = Crew.together, list[int]()

    @contextmanager
    def marked(self: Crew, **how: bool) -> Iterator[Shared]:
        marks.append(shim.disk_calls())
        try:
            with together(self, **how) as shared:
                yield shared
        finally:
            marks.append(shim.disk_calls())

    Crew.together = marked  # type: ignore[method-assign]
    try:
        yield marks
    finally:
        Crew.together = together  # type: ignore[method-assign]


def answer(asked: dict[str, Any], command: Command) -> dict[str, Any]:
    """Run one command on a disk in trouble: how it ended."""
    shim = ctypes.CDLL(None)
    shim.disk_failed.restype = ctypes.c_char_p
    words, under, calls, log = (asked[k] for k in ("words", "under", "calls", "log"))
    numbers = (asked[k] for k in ("at", "errno", "stays", "short_every", "interrupt_every"))
    at, errno, stays, short, interrupt = map(int, numbers)
    out, err, status = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), meetings(shim) as marks:
        try:
            shim.disk_arm(
                under.encode(), calls.encode(), ctypes.c_long(at), errno, stays,
                ctypes.c_long(short), ctypes.c_long(interrupt), log.encode(),
            )  # fmt: skip
            command(words)
        except SystemExit as stop:
            status = int(stop.code or 0)
        finally:
            count, failed = shim.disk_calls(), shim.disk_failed().decode()
            shim.disk_arm(b"", b"", ctypes.c_long(0), 0, 0, ctypes.c_long(0), ctypes.c_long(0), b"")
    marks = [0, *marks, count]
    return {
        "status": status, "out": out.getvalue(), "err": err.getvalue(), "calls": count,
        "unheard": sum(marks[1::2]) - sum(marks[:-1:2]), "failed": failed,
    }  # fmt: skip


def main() -> None:
    """Serve a `Disk`: one command a line."""
    from intarsia.cli.main import main as command

    eager, moving = (bool(int(word)) for word in sys.argv[2:4])
    prepare(int(sys.argv[1]), eager=eager, moving=moving)
    answers = sys.stdout
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line), command)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

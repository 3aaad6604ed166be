"""How a rank waits for others before they share a call: aloud, and not for long."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from intarsia.errors import IntarsiaError

SILENT_SECONDS, WAIT_SECONDS = 10.0, 300.0
"""After how long a rank reports for whom it waits, and after how long it gives up."""
_HINT = (
    "every rank must make this call; if only one should, give --alone (`alone=True`);"
    " INTARSIA_WAIT_SECONDS allows more time to start"
)


def wait_seconds() -> float:
    """After how long a rank gives up."""
    try:
        return float(os.environ["INTARSIA_WAIT_SECONDS"])
    except (KeyError, ValueError):
        return WAIT_SECONDS


def in_words(ranks: Sequence[int]) -> str:
    """Some ranks, by their numbers."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}"


@contextmanager
def connected(rank: int, size: int) -> Iterator[None]:
    """A block in which ranks talk; one whose others are gone has an error that says so."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        others = "rank" if size == 2 else f"{size - 1} ranks"
        why = str(error).partition("\n")[0] or type(error).__name__
        raise IntarsiaError(
            f"rank {rank} lost the connection to the other {others}: {why}",
            hint="one of them died or lost its connection: its own log says why",
        ) from error


@dataclass
class Waiting:
    """A rank that waits, since when, and whether it has reported that."""

    rank: int
    size: int
    _since: float = field(default_factory=time.monotonic)
    _reported: bool = False

    def on(self, whom: str) -> None:
        """Report once for whom this rank waits, if it has waited for long; raise where it gives up."""
        waited = time.monotonic() - self._since
        if waited > wait_seconds():
            raise self.in_vain(whom)
        if not self._reported and waited > _silent_seconds():
            self.say(whom)

    @contextmanager
    def aloud(self, whom: str) -> Iterator[None]:
        """Report for whom this rank waits inside, if that takes long."""
        timer = threading.Timer(_silent_seconds(), self.say, (whom,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def say(self, whom: str) -> None:
        """Report for whom this rank waits."""
        self._reported = True
        print(
            f"intarsia: rank {self.rank} of {self.size} waits for {whom}, for at most"
            f" {wait_seconds():.0f} s; {_HINT}",
            file=sys.stderr,
            flush=True,
        )

    def in_vain(self, whom: str) -> IntarsiaError:
        """The error of a rank that has waited for long enough."""
        return IntarsiaError(
            f"rank {self.rank} of {self.size} waited for {whom}, without an answer", hint=_HINT
        )


def _silent_seconds() -> float:
    return min(SILENT_SECONDS, wait_seconds() / 2)

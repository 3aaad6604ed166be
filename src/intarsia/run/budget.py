"""How much memory a run may take, and what follows from it."""

from __future__ import annotations

import os
from dataclasses import replace
from math import isqrt
from numbers import Integral

from intarsia.errors import UsageError
from intarsia.frozen import frozen
from intarsia.planning.window import WINDOW_BYTES
from intarsia.quantity import bytes_in, human
from intarsia.run.sums.hashing import STRETCH_BYTES
from intarsia.run.sums.pages import PAGE_BYTES

LEAST_BYTES = 16 << 20
LEAST_WINDOW_BYTES = 8 << 10
MOST_WORKERS = 16
"""How many threads are taken where nobody says how many."""
MANY = 3
"""From so many workers on, few large calls cost less than small ones that stay in a core's cache."""
LARGE_BYTES = 2 * WINDOW_BYTES
"""The largest window of many workers: they share one interpreter, which has work with each window."""
ALONE_BYTES = 512 << 10
"""Bytes that a thread works on in the time that a thing keeps the interpreter for itself."""
TARGET_BYTES, BOX_BYTES = 100 << 10, 8 << 10
"""Bytes that a thread moves in the time that a target, and each of its boxes, keeps the interpreter for itself."""
TURN_BYTES = 36 << 20
"""Bytes that a thread moves in the time that the steps of one worker keep the interpreter for themselves."""
ENOUGH = 8
"""So many workers are not too many for anything: they may wait for a disk."""
STEP_BYTES = 64 << 20
"""The most that a worker moves from file to file at once, which takes no buffer."""
SHARES = 24
"""A kill loses what all workers have in hand; that is at most one of so many shares of the work."""


CALLS = 8
"""How many calls a thread has at least that keep nothing of what they look at, where there is so much work."""
CALL_BYTES = 4 * LARGE_BYTES
"""How much one of them looks at, at most."""


@frozen
class Budget:
    """Bytes of buffers, and the threads that share them."""

    memory_bytes: int
    workers: int
    share_bytes: int = LARGE_BYTES

    @staticmethod
    def of(memory: str | int | None = None, workers: int | None = None) -> Budget:
        """The budget that a user asks for, or the smaller of 2 GiB and a quarter of the machine."""
        if memory is None:
            machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            memory_bytes = min(2 << 30, machine // 4)
        else:
            memory_bytes = bytes_in(memory)
        if memory_bytes < LEAST_BYTES:
            raise UsageError(
                f"a memory budget of {human(memory_bytes)} is too small",
                hint=f"give at least {human(LEAST_BYTES)}",
            )
        if workers is not None and (not isinstance(workers, Integral) or workers < 1):
            raise UsageError(f"the number of workers is {workers!r}", hint="give at least 1")
        return Budget(memory_bytes, workers or min(MOST_WORKERS, max(1, _cores() // _processes())))

    def less(self, held_bytes: int) -> Budget:
        """What is left beside bytes that are held all the time; at least half of it stays for buffers."""
        left = self.memory_bytes - min(held_bytes, self.memory_bytes // 2)
        return replace(self, memory_bytes=left)

    def for_work(
        self, total_bytes: int, processes: int = 1, *, targets: int = 0, boxes: int = 0
    ) -> Budget:
        """The same budget, its windows a small share of the work, and no more workers than gain by it.

        More of them would wait for the interpreter, which has work with each target, each of its boxes and each
        step; every worker brings steps of its own, so that as many gain as balance that with the bytes.
        """
        alone_bytes = targets * TARGET_BYTES + boxes * BOX_BYTES
        gain = min(
            1 + total_bytes // max(alone_bytes, 1), isqrt(total_bytes // (processes * TURN_BYTES))
        )
        workers = min(self.workers, max(ENOUGH, gain))
        share = total_bytes // (SHARES * workers * processes)
        return replace(self, workers=workers, share_bytes=max(LEAST_WINDOW_BYTES, share))

    @property
    def window_bytes(self) -> int:
        """The largest destination buffer: each worker holds one, and as much again to read into."""
        most = WINDOW_BYTES if self.workers < MANY else LARGE_BYTES
        return min(most, self.share_bytes, self.memory_bytes // (3 * self.workers))

    @property
    def step_bytes(self) -> int:
        """How much a worker takes in hand at once: a buffer's fill, or more where bytes go from file to file."""
        return max(self.window_bytes, min(STEP_BYTES, self.share_bytes))

    @property
    def side_bytes(self) -> int:
        """The largest buffer of each of two sides that are held at once."""
        return self.window_bytes if self.workers >= MANY else self.window_bytes // 2

    def workers_for(self, things: int, total_bytes: int) -> int:
        """How many threads gain anything on things of so many bytes in all.

        Beside the bytes, which threads work on side by side, each thing has what one thread at a
        time does; more threads than that leaves work for only wait for each other.
        """
        return min(self.workers, 1 + total_bytes // (ALONE_BYTES * max(things, 1)))

    def call_bytes(self, total_bytes: int, least_bytes: int) -> int:
        """How much is looked at in a call that keeps nothing of it: each costs the interpreter as much, whatever it looks at."""
        return max(least_bytes, min(CALL_BYTES, total_bytes // (CALLS * self.workers)))

    @property
    def stretch_bytes(self) -> int:
        """How much is summed in one call: what stays in a core's cache, or, where many threads would
        meet at the interpreter's lock between small calls, a whole window."""
        if self.workers < MANY:
            return min(STRETCH_BYTES, self._pages)
        return self._pages

    @property
    def digest_bytes(self) -> int:
        """How much a digest reads and sums in one call, which costs as much as some 200 KB of bytes."""
        return max(self.stretch_bytes, min(2 * STRETCH_BYTES, self._pages))

    @property
    def _pages(self) -> int:
        """A window in whole pages of sums."""
        return max(PAGE_BYTES, self.window_bytes // PAGE_BYTES * PAGE_BYTES)

    @property
    def peak_bytes(self) -> int:
        """What the buffers of all workers come to."""
        return min(self.memory_bytes, 3 * self.workers * self.window_bytes)


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processes() -> int:
    """The processes of this job on this machine, which share its cores, as torchrun gives them."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(text)) if text.isdecimal() else 1

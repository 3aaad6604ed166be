"""Work on many things, shared out to threads."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Generic, TypeVar

from intarsia.run.progress import Progress, counting

T = TypeVar("T")
U = TypeVar("U")

LOOK_AHEAD = 64
"""Of how many queues the first thing is looked at before one is taken."""


def share_out(
    things: Sequence[T],
    workers: int,
    work: Callable[[T], U],
    *,
    progress: Progress | None = None,
    nbytes: Callable[[T], int] = lambda thing: 0,
    uses: Callable[[T], Collection[str]] = lambda thing: (),
) -> list[U]:
    """What the work on every thing gives, in their order; the first failure stops all threads.

    Each thread takes things until none is left, in their order, but leaves those that use (the files
    that they are written to) what other threads have in use for later.

    >>> share_out([3, 1, 2], 2, lambda n: n * n)
    [9, 1, 4]
    """
    done: dict[int, U] = {}
    todo = _Todo(things, uses if workers > 1 else lambda thing: ())
    advance = counting(progress, sum(map(nbytes, things)))

    def take_some() -> None:
        while True:
            with todo.next() as number:
                if number is None:
                    break
                done[number] = work(things[number])
            advance(nbytes(things[number]))

    with ThreadPoolExecutor(workers, "intarsia") as pool:
        threads, alone = list[Future[None]](), False
        try:
            with suppress(RuntimeError):  # the system gives no more of them
                for _ in range(min(workers, len(things))):
                    threads.append(pool.submit(take_some))
            alone = not threads
            if alone:
                take_some()
            wait(threads, return_when=FIRST_EXCEPTION)
        finally:
            # The pool does not know of a thread while it starts, which is when an interrupt may come.
            todo.end(wait=not alone)
        for thread in threads:
            thread.result()
    return [done[number] for number in range(len(things))]


def in_steps(things: Iterable[T], most_bytes: int, nbytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Things in their order, in steps of at most so many bytes; a larger thing is a step of its own.

    >>> list(in_steps([3, 1, 5, 2], 4, int))
    [[3, 1], [5], [2]]
    """
    step: list[T] = []
    used = 0
    for thing in things:
        more = nbytes(thing)
        if step and used + more > most_bytes:
            yield step
            step, used = [], 0
        step.append(thing)
        used += more
    if step:
        yield step


class _Todo(Generic[T]):
    """The numbers of things that are left, in one queue for each set of what they use."""

    def __init__(self, things: Sequence[T], uses: Callable[[T], Collection[str]]) -> None:
        self._lock = threading.Condition()
        self._in_work = 0
        self._busy: Counter[str] = Counter()
        self._queues: dict[frozenset[str], deque[int]] = {}
        for number, thing in enumerate(things):
            self._queues.setdefault(frozenset(uses(thing)), deque()).append(number)

    @contextmanager
    def next(self) -> Iterator[int | None]:
        """The number of the thing to work on inside; None where none is left."""
        with self._lock:
            used, number = self._take()
            self._in_work += 1
        try:
            yield number
        finally:
            with self._lock:
                self._busy.subtract(used)
                self._in_work -= 1
                self._lock.notify_all()

    def end(self, *, wait: bool) -> None:
        """Give out no more, perhaps once all that was given out is done."""
        with self._lock:
            self._queues.clear()
            self._lock.wait_for(lambda: not (wait and self._in_work))

    def _take(self) -> tuple[frozenset[str], int | None]:
        if not self._queues:
            return frozenset(), None
        near = islice(self._queues.items(), LOOK_AHEAD)
        used, queue = min(near, key=lambda each: (self._users(each[0]), each[1][0]))
        number = queue.popleft()
        if not queue:
            del self._queues[used]
        self._busy.update(used)
        return used, number

    def _users(self, used: frozenset[str]) -> int:
        """How many have in use what is used most of these."""
        return max((self._busy[each] for each in used), default=0)

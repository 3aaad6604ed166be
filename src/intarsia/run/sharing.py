"""Work on many things, shared out to threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from intarsia.run.progress import Progress, counting

T = TypeVar("T")
U = TypeVar("U")


def share_out(
    things: Sequence[T],
    workers: int,
    work: Callable[[T], U],
    *,
    progress: Progress | None = None,
    nbytes: Callable[[T], int] = lambda thing: 0,
) -> list[U]:
    """What the work on every thing gives, in their order; the first failure stops all threads.

    Threads take things until none is left: to hand over each one has a price.

    >>> share_out([3, 1, 2], 2, lambda n: n * n)
    [9, 1, 4]
    """
    done: dict[int, U] = {}
    stop, lock = threading.Event(), threading.Lock()
    todo = enumerate(things)
    advance = counting(progress, sum(map(nbytes, things)))

    def take_some() -> None:
        while not stop.is_set():
            with lock:
                taken = next(todo, None)
            if taken is None:
                break
            number, thing = taken
            done[number] = work(thing)
            advance(nbytes(thing))

    with ThreadPoolExecutor(workers, "intarsia") as pool:
        threads = [pool.submit(take_some) for _ in range(min(workers, len(things)))]
        try:
            wait(threads, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
        for thread in threads:
            thread.result()
    return [done[number] for number in range(len(things))]

"""Ranks that wait for each other before they share a call: aloud, and not for long."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from intarsia.errors import IntarsiaError

PATIENCE = timedelta(hours=12)
"""How long a rank waits for the work of another; of one that died it hears at once."""
SILENT_SECONDS, WAIT_SECONDS = 10.0, 300.0
"""After how long a rank reports for whom it waits, and after how long it gives up."""
_HINT = (
    "every rank must make this call; if only one should, give --alone (`alone=True`);"
    " INTARSIA_WAIT_SECONDS allows more time to start"
)
_calls: list[Any] = []
"""The stores of calls that all ranks have made, by whose number the next one is known."""


def group_of_torchrun() -> Any:
    """A new default group of the ranks that `torchrun` started."""
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=_limit())
    where = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '?')}"
    with _aloud(rank, size, f"the store at {where}"):
        try:
            store, _, _ = next(rendezvous("env://", rank, size, timeout=limit))
        except (
            RuntimeError,
            ValueError,
            OSError,
        ) as error:  # what torch raises where nobody listens
            raise _in_vain(rank, size, f"the store at {where}") from error
    mine = _prefixed(store)
    _await(mine, rank, size)
    dist.init_process_group("gloo", store=mine, rank=rank, world_size=size, timeout=PATIENCE)
    return None


def group_of_script() -> Any:
    """A group of our own beside the one that a script has set up, whatever that one's backend is."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    mine = _prefixed(_get_default_store())
    _await(mine, dist.get_rank(), dist.get_world_size())
    return dist.new_group(backend="gloo", timeout=PATIENCE)


def _prefixed(store: Any) -> Any:
    """The part of a store that belongs to this call alone, the same on every rank."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(f"intarsia/{len(_calls)}", store)


def _await(store: Any, rank: int, size: int) -> None:
    """Return when every rank has come here."""
    started, told, pause = time.monotonic(), False, 0.01
    store.set(f"here/{rank}", b"1")
    while absent := [r for r in range(size) if not store.check([f"here/{r}"])]:
        waited = time.monotonic() - started
        whom = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent[:8]))}"
        if waited > _limit():
            with suppress(RuntimeError):  # a store that cannot forget
                store.delete_key(f"here/{rank}")
            raise _in_vain(rank, size, whom)
        if not told and waited > min(SILENT_SECONDS, _limit() / 2):
            told = True
            _say(rank, size, whom)
        time.sleep(pause)
        pause = min(0.5, 2 * pause)
    _calls.append(store)


@contextmanager
def _aloud(rank: int, size: int, whom: str) -> Iterator[None]:
    """Report for whom this rank waits, if that takes long."""
    timer = threading.Timer(min(SILENT_SECONDS, _limit() / 2), _say, (rank, size, whom))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(rank: int, size: int, whom: str) -> None:
    print(
        f"intarsia: rank {rank} of {size} waits for {whom}, for at most {_limit():.0f} s; {_HINT}",
        file=sys.stderr,
        flush=True,
    )


def _in_vain(rank: int, size: int, whom: str) -> IntarsiaError:
    return IntarsiaError(f"rank {rank} of {size} waited for {whom}, without an answer", hint=_HINT)


def _limit() -> float:
    try:
        return float(os.environ["INTARSIA_WAIT_SECONDS"])
    except (KeyError, ValueError):
        return WAIT_SECONDS

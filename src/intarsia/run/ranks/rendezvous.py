"""Where the ranks that share a call find each other: on their machine, or through a store of torch."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from intarsia.errors import IntarsiaError
from intarsia.run.ranks.one_machine import OneMachine, meet_ranks
from intarsia.run.ranks.waiting import Waiting, connected, in_words, wait_seconds

PATIENCE = timedelta(hours=12)
"""How long a rank waits for the work of another; it notices at once when one died."""
_calls: list[Any] = []
"""The stores of calls that all ranks have made, by whose number the next one is known."""


def ranks_of_machine(rank: int, size: int) -> OneMachine:
    """The ranks that `torchrun` started, all of them on this machine."""
    found = meet_ranks(Waiting(rank, size), len(_calls), PATIENCE.total_seconds())
    _calls.append(None)
    return found


def group_of_torchrun() -> Any:
    """A new default group of the ranks that `torchrun` started."""
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=wait_seconds())
    where = f"the store at {os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '?')}"
    waiting = Waiting(rank, size)
    with waiting.aloud(where):
        try:
            store, _, _ = next(rendezvous("env://", rank, size, timeout=limit))
        except (
            RuntimeError,
            ValueError,
            OSError,
        ) as error:  # what torch raises where nobody listens
            raise waiting.in_vain(where) from error
    mine = _prefixed(store)
    _await(mine, rank, size)
    with connected(rank, size):
        dist.init_process_group("gloo", store=mine, rank=rank, world_size=size, timeout=PATIENCE)
    return None


def group_of_script() -> Any:
    """A group of our own beside the one that a script has set up, whatever that one's backend is."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    mine = _prefixed(_get_default_store())
    rank, size = dist.get_rank(), dist.get_world_size()
    _await(mine, rank, size)
    with connected(rank, size):
        return dist.new_group(backend="gloo", timeout=PATIENCE)


def _prefixed(store: Any) -> Any:
    """The part of a store that belongs to this call alone, the same on every rank."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(f"intarsia/{len(_calls)}", store)


def _await(store: Any, rank: int, size: int) -> None:
    """Return when every rank has come here."""
    waiting, pause = Waiting(rank, size), 0.01
    store.set(f"here/{rank}", b"1")
    while absent := [r for r in range(size) if not store.check([f"here/{r}"])]:
        try:
            waiting.on(in_words(absent))
        except IntarsiaError:
            with suppress(RuntimeError):  # a store that cannot forget
                store.delete_key(f"here/{rank}")
            raise
        time.sleep(pause)
        pause = min(0.5, 2 * pause)
    _calls.append(store)

"""Two gloo ranks, forked, that share a command; either may have its own words and its own trouble."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from tests.faults.soak.child import CALM, Child, Ended, Trouble

if TYPE_CHECKING:
    from tests.faults.soak.ground import Round


class Ranks:
    """As many ranks as there are lists of words."""

    def __init__(self, r: Round, words: list[list[str]], troubles: dict[int, Trouble]) -> None:
        self.round = r
        folder = r.ground.root / "children" / str(r.number)
        folder.mkdir(parents=True, exist_ok=True)
        store = folder / "store"
        self.children = [
            Child(folder, _rank(str(store), rank, len(words), line), troubles.get(rank, CALM))
            for rank, line in enumerate(words)
        ]

    def ended(self, what: str) -> list[Ended]:
        """How each rank ended; none may wait for one that is gone."""
        found = [child.wait() for child in self.children]
        for rank, end in enumerate(found):
            self.round.log.append(f"rank {rank}, {what}: {end}")
            self.round.seen["kills"] += end.killed
            self.round.seen["refusals"] += end.status in (1, 2)
            fine = (0, 2, 129, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP)
            assert end.status in fine, f"rank {rank} ended with {end.status}"
            assert "Traceback" not in end.err, "a traceback"
            assert "INTARSIA_DEBUG" not in end.err, "an error that nobody planned"
        return found


def _rank(store: str, rank: int, size: int, words: list[str]) -> Callable[[], object]:
    def work() -> None:
        from intarsia.cli.main import main

        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost",
            "INTARSIA_WAIT_SECONDS": "20",  # for one that is gone before any knows of it
        }  # fmt: skip
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=50)
        )  # fmt: skip
        try:
            main(words)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    return work

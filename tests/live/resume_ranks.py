"""Four processes that take one half of a scenario after the other, so that 200 scenarios start four times.

One scenario: python -m tests.live.resume_ranks 17
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.live.resume_outcome import Half, outcome
from tests.live.resume_scenario import Scenario
from tests.live.resume_training import half_on

SECONDS = 60
"""After so long a half that has not ended hangs."""


class Pool:
    """The processes; those of a half that hung or died are replaced."""

    def __init__(self, size: int = 4) -> None:
        self._size = size
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.live.resume_training"])
        self._held: list[tuple[Any, Connection]] = []

    def __enter__(self) -> Pool:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __call__(self, half: str, scenario: Scenario, folder: Path) -> Sequence[Half]:
        """One half on all of its ranks; raise where it hangs, or fails otherwise than by refusing."""
        ours = self._held[: getattr(scenario, half).ranks]
        for rank, (_, link) in enumerate(ours):
            link.send((half, scenario, folder, rank))
        found: list[Any] = []
        failed = []
        for rank, (_, link) in enumerate(ours):
            try:
                # A rank that failed may leave the others waiting for it.
                answer = link.recv() if link.poll(5 if failed else SECONDS) else "it hangs"
            except EOFError:
                answer = "it died"
            found.append(answer)
            if isinstance(answer, str):
                failed.append(f"rank {rank}: {answer}")
        if failed:
            for process, _ in ours:
                if process.is_alive():
                    os.kill(process.pid, signal.SIGUSR1)
            time.sleep(0.5)
            self._end()
            self._start()
            raise RuntimeError("\n".join([f"{half}, {scenario}", *failed]))
        return found

    def _start(self) -> None:
        for _ in range(self._size):
            mine, theirs = self._context.Pipe()
            process = self._context.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._held.append((process, mine))

    def _end(self) -> None:
        for process, link in self._held:
            link.close()
            process.terminate()
            process.join(5)
            if process.is_alive():
                process.kill()
        self._held = []


def _work(link: Connection) -> None:
    """Take halves until nobody sends any more."""
    import torch

    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    while True:
        try:
            half, scenario, folder, rank = link.recv()
        except EOFError:
            return
        try:
            found: Any = half_on(half, scenario, folder, rank)
        except BaseException:
            found = traceback.format_exc(limit=-6)
        link.send(found)


def main() -> None:
    """Run the scenarios of the seeds that are given, and print how each ends."""
    with Pool() as pool:
        for seed in map(int, sys.argv[1:]):
            scenario = Scenario.drawn(seed)
            print(scenario)
            print(f"seed {seed}: {outcome(scenario, pool)}", flush=True)


if __name__ == "__main__":
    main()

"""The processes that share one conversion: one alone, or the ranks of a `torchrun` job.

Ranks meet at the end of each `together` block.  If one of them failed in it, all of them
raise there, so that no rank waits for one that is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from intarsia.errors import IntarsiaError, StoreError
from intarsia.run.apart import Apart

PATIENCE = timedelta(hours=12)


@dataclass
class Shared:
    """What each rank brings to a meeting (`value`), and what all of them brought (`values`)."""

    value: Any = None
    values: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class _Told:
    """What a rank says of its failure, so that the others know what it cost."""

    text: str
    path: Path | None
    lost: bool

    @staticmethod
    def of(failure: BaseException) -> _Told:
        text = f"{type(failure).__name__}: {failure}"
        if not isinstance(failure, StoreError):
            return _Told(text, None, False)
        return _Told(text, Path(failure.path) if failure.path else None, failure.lost)

    def on(self, rank: int, here: int) -> IntarsiaError:
        text = f"rank {rank} failed, so rank {here} stops too: {self.text}"
        return StoreError(text, path=self.path, lost=True) if self.lost else IntarsiaError(text)


@dataclass(frozen=True)
class Crew:
    """This process's rank among those that work together; `apart` where they meet on their own."""

    rank: int = 0
    size: int = 1
    apart: Apart | None = None

    @contextmanager
    def together(self) -> Iterator[Shared]:
        """A block that succeeds on every rank or on none."""
        shared = Shared()
        failure: BaseException | None = None
        try:
            yield shared
        except BaseException as error:
            if self.size == 1:
                raise
            failure = error
        if self.size == 1:
            shared.values = [shared.value]
            return
        self._meet(shared, failure)

    def _meet(self, shared: Shared, failure: BaseException | None) -> None:
        import torch.distributed as dist

        told = None if failure is None else _Told.of(failure)
        answers: list[Any] = [None] * self.size
        try:
            if self.apart is not None:
                answers = self.apart.all_gather((told, shared.value))
            else:
                dist.all_gather_object(answers, (told, shared.value))
        except RuntimeError as error:
            if failure is not None:
                raise failure from error
            raise IntarsiaError(
                f"rank {self.rank} lost the other {self.size - 1} ranks: {_first_line(error)}",
                hint="one of them died or lost its connection: its own log says why",
            ) from error
        if failure is not None:
            raise failure
        for rank, (said, _) in enumerate(answers):
            if said is not None:
                raise said.on(rank, self.rank)
        shared.values = [value for _, value in answers]


def crew() -> Crew:
    """The crew that the environment describes: `torchrun` sets RANK and WORLD_SIZE."""
    if crew_size() == 1:
        return Crew()
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=PATIENCE)
    return Crew(dist.get_rank(), dist.get_world_size())


def crew_size() -> int:
    """How many processes share the work."""
    told = all(name in os.environ for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR"))
    return int(os.environ["WORLD_SIZE"]) if told else 1


def ranks_of_model() -> Crew:
    """The ranks of the process group that a training script has set up, or this process alone."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return Crew()
    return Crew(dist.get_rank(), dist.get_world_size())


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def disband() -> None:
    """Leave the process group, if this process joined one."""
    import sys

    if "torch.distributed" in sys.modules:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()

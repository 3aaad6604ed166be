"""The processes that share one conversion: one alone, or the ranks of a `torchrun` job.

Ranks meet at the end of each `together` block.  If one of them failed in it, all of them
raise there, so that no rank waits for one that is gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from intarsia.errors import IntarsiaError, StoreError, UsageError, few_lines
from intarsia.frozen import frozen_open
from intarsia.run.ranks.apart import Apart
from intarsia.run.ranks.waiting import connected
from intarsia.run.stopping import ending_at_once
from intarsia.store.address import named

if TYPE_CHECKING:
    from intarsia.run.ranks.one_machine import OneMachine

_VARIABLES = ("WORLD_SIZE", "RANK", "MASTER_ADDR")


@dataclass
class Shared:
    """What each rank contributes to an exchange (`value`), and what all of them contributed (`values`)."""

    value: Any = None
    values: list[Any] = field(default_factory=list)


@frozen_open
class _Failure:
    """The failure of a rank, as it is reported to the others."""

    text: str
    path: PurePath | None
    lost: bool

    @staticmethod
    def of(failure: BaseException) -> _Failure:
        text = f"{type(failure).__name__}: {failure}"
        if not isinstance(failure, StoreError):
            return _Failure(text, None, False)
        return _Failure(text, named(failure.path) if failure.path else None, failure.lost)

    def on(self, rank: int, here: int) -> IntarsiaError:
        text = f"rank {rank} failed, so rank {here} stops too: {self.text}"
        return StoreError(text, path=self.path, lost=True) if self.lost else IntarsiaError(text)


@frozen_open
class Crew:
    """This process's rank among those that work together, and where they meet: in a group, or apart."""

    rank: int = 0
    size: int = 1
    group: Any = None
    apart: Apart | OneMachine | None = None

    def numbers_of(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers that ranks of the whole job have here; those that are not here have none."""
        if self.group is None:
            return ranks
        import torch.distributed as dist

        here = {rank: k for k, rank in enumerate(dist.get_process_group_ranks(self.group))}
        return tuple(here[rank] for rank in ranks if rank in here)

    @contextmanager
    def together(self, *, to_first: bool = False) -> Iterator[Shared]:
        """A block that succeeds on every rank or on none.

        What ranks bring goes to all of them, or `to_first`: then the others have no `values`.
        """
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
        value, shared.value = shared.value, None if to_first else shared.value
        self._meet(shared, failure)
        shared.value = value
        if to_first:
            shared.values = self._connected(lambda: self._gather(value))

    def broadcast(self, value: Any = None) -> Any:
        """What the first rank says to all."""
        return value if self.size == 1 else self._connected(lambda: self._broadcast(value))

    def scatter(self, values: Sequence[Any] = ()) -> Any:
        """What the first rank has for this one; `values` are its own for each rank."""
        return values[0] if self.size == 1 else self._connected(lambda: self._scatter(values))

    def _meet(self, shared: Shared, failure: BaseException | None) -> None:
        lost = None if failure is None else _Failure.of(failure)
        mine = None if lost is None and shared.value is None else (lost, shared.value)
        answers = self._connected(lambda: self._all_gather(mine), failure)
        if failure is not None:
            raise failure
        answers = [answer or (None, None) for answer in answers]
        for rank, (said, _) in enumerate(answers):
            if said is not None:
                raise said.on(rank, self.rank)
        shared.values = [value for _, value in answers]

    def _connected(self, exchange: Callable[[], Any], failure: BaseException | None = None) -> Any:
        """The result of an exchange between all ranks; raise where they are no longer connected."""
        try:
            with connected(self.rank, self.size), ending_at_once():
                return exchange()
        except IntarsiaError as error:
            raise failure or error from error.__cause__

    def _all_gather(self, value: Any) -> list[Any]:
        if self.apart is not None:
            return self.apart.all_gather(value)
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def _gather(self, value: Any) -> list[Any]:
        if self.apart is not None:
            return self.apart.gather(value, self.rank)
        import torch.distributed as dist

        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, found, group=self.group, group_dst=0)
        return found or []

    def _scatter(self, values: Sequence[Any]) -> Any:
        if self.apart is not None:
            return self.apart.scatter(values, self.rank)
        import torch.distributed as dist

        mine, rows = [None], list(values) if self.rank == 0 else None
        dist.scatter_object_list(mine, rows, group=self.group, group_src=0)
        return mine[0]

    def _broadcast(self, value: Any) -> Any:
        if self.apart is not None:
            return self.apart.broadcast(value, self.rank)
        import torch.distributed as dist

        said = [value]
        dist.broadcast_object_list(said, group=self.group, group_src=0)
        return said[0]


@contextmanager
def crew(*, alone: bool = False) -> Iterator[Crew]:
    """The ranks that share a call, or this process alone; a group that is made for it is gone afterwards."""
    if alone or crew_size() == 1:
        yield Crew()
        return
    from intarsia.run.ranks.one_machine import on_one_machine
    from intarsia.run.ranks.rendezvous import group_of_script, group_of_torchrun, ranks_of_machine

    if on_one_machine() and not _is_initialized():
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        with closing(ranks_of_machine(rank, size)) as met:
            yield Crew(rank, size, apart=met)
        return
    import torch.distributed as dist

    group = group_of_script() if dist.is_initialized() else group_of_torchrun()
    try:
        yield Crew(dist.get_rank(), dist.get_world_size(), group)
    finally:
        with suppress(RuntimeError):  # a rank that is gone is reported elsewhere
            dist.destroy_process_group(group)


def crew_size() -> int:
    """How many processes share the work: those of a `torchrun` job, or of a script that has set up its group.

    The variables alone say nothing: the shell of a cluster's job may have them, too.
    """
    if not all(name in os.environ for name in _VARIABLES):
        return 1
    if "TORCHELASTIC_RUN_ID" in os.environ or _is_initialized():
        return int(os.environ["WORLD_SIZE"])
    return 1


def agree(team: Crew, facts: Mapping[str, str]) -> None:
    """Raise on every rank where one of them is about to do something else than the first."""
    with team.together() as shared:
        shared.value = dict(facts)
    check_alike(shared.values)


def check_alike(reported: Sequence[Mapping[str, str]]) -> None:
    """Raise where a rank reported other facts than the first; all ranks have all that were reported."""
    first = reported[0]
    for rank, found in enumerate(reported):
        wrong = [name for name in {**first, **found} if first.get(name) != found.get(name)]
        if wrong:
            texts = [
                f"{name}: {first.get(name, 'absent')} on rank 0, {found.get(name, 'absent')}"
                f" on rank {rank}"
                for name in wrong
            ]
            raise UsageError(
                f"rank {rank} was called with something else than rank 0, so nothing was"
                f" started:{few_lines(texts, 4)}",
                hint="give every rank the same options and one source, by an absolute path that"
                " leads to the same files everywhere",
            )


def note_on_ranks(*, alone: bool) -> list[str]:
    """A note where the environment names ranks and none is waited for."""
    named = all(name in os.environ for name in _VARIABLES)
    if alone or not named or os.environ["WORLD_SIZE"] == "1" or crew_size() > 1:
        return []
    return [
        f"RANK={os.environ['RANK']} and WORLD_SIZE={os.environ['WORLD_SIZE']} are set, but not"
        " by torchrun: this process did all the work"
    ]


def _is_initialized() -> bool:
    if "torch.distributed" not in sys.modules:
        return False
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def ranks_of_model(group: Any = None) -> Crew:
    """The ranks of a process group, by default of all that a training script has set up; or this process alone."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return Crew()
    rank = dist.get_rank(group)
    if rank < 0:
        raise UsageError(
            f"rank {dist.get_rank()} is not in the process group that was given",
            hint="call it on the ranks of that group alone",
        )
    return Crew(rank, dist.get_world_size(group), group)

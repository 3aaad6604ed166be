"""Saving while training goes on: a copy is taken at once, and written aside.

The copy's memory is kept for the next save, so that taking it costs one pass over memory.  Ranks
meet on a process group of their own, which no collective of the training disturbs.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from intarsia.live.save import Saved, Snapshot, snapshot, write
from intarsia.run.budget import Budget
from intarsia.run.crew import Crew, ranks_of_model
from intarsia.run.progress import Progress

if TYPE_CHECKING:
    import torch

_memory: dict[str, torch.Tensor] = {}
"""Where copies are kept, by tensor; used by one save at a time."""

_running: Saving | None = None
_groups: WeakKeyDictionary[Any, ReferenceType[Any]] = WeakKeyDictionary()
"""The group that stands aside each default group; torch alone keeps them, and so can end them."""


class Saving:
    """A save that goes on in the background; `wait` gives its result or raises its error."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.pause_seconds = 0.0
        self._result: Saved | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def done(self) -> bool:
        """Whether it ended, well or not."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> Saved:
        """Wait for the end; raise what went wrong."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        assert self._result is not None, "the error of this save was raised before"
        return self._result

    def _start(self, work: Any) -> None:
        def run() -> None:
            try:
                self._result = work()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="intarsia-save")
        self._thread.start()


def save(
    path: str | Path,
    model: Any,
    optimizer: Any = None,
    extra: Mapping[str, Any] | None = None,
    background: bool = False,
    *,
    config: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    latest: bool | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Saved | Saving:
    """Save a model, an optimizer and `extra` values as a sharded DCP checkpoint; collective.

    `path` appears when it is whole, or not at all.  Where its name ends in a number, the file
    `latest` beside it names it then (`latest=False` leaves that alone).  With `background` the
    call returns when a copy is taken; what went wrong is raised by `wait()` or by the next save.
    """
    global _running
    if _running is not None:
        before, _running = _running, None
        before.wait()
    started = time.perf_counter()
    team = ranks_of_model()
    what = snapshot(model, optimizer, extra, config)
    options: dict[str, Any] = {
        "overwrite": overwrite,
        "latest": latest,
        "workers": Budget.of(None, workers).workers,
        "progress": progress,
    }
    if not background:
        return write(path, what, team, **options)
    saving = Saving(path)
    aside = _aside(team)
    copied = copy_of(what)
    saving.pause_seconds = time.perf_counter() - started
    saving._start(lambda: write(path, copied, aside, **options))
    _running = saving
    return saving


def copy_of(what: Snapshot) -> Snapshot:
    """The snapshot in memory of its own, which the model's next step does not change."""
    import torch

    copies = {name: _room(name, held) for name, held in what.memory.items()}
    if copies:
        torch._foreach_copy_(list(copies.values()), list(what.memory.values()))
    return replace(what, memory=copies)


def _room(name: str, like: torch.Tensor) -> torch.Tensor:
    """Memory for a copy, where the last copy of that tensor was if it fits."""
    import torch

    held = _memory.get(name)
    if held is None or held.shape != like.shape or held.dtype != like.dtype:
        held = torch.empty(like.shape, dtype=like.dtype, pin_memory=like.device.type == "cuda")
        _memory[name] = held
    return held


def release() -> None:
    """Give back the memory that background saves keep for their copies."""
    _memory.clear()


def _aside(team: Crew) -> Crew:
    """The same ranks on a group of their own, made once."""
    if team.size == 1:
        return team
    import torch.distributed as dist

    world = dist.group.WORLD
    known = _groups.get(world)
    group = known() if known else None
    if group is None:
        group = dist.new_group(backend="gloo")
        _groups[world] = ref(group)
        atexit.register(_leave, ref(group))
    return replace(team, group=group)


def _leave(known: ReferenceType[Any]) -> None:
    """End a group that the script left open, while its threads can still give back what they hold."""
    import torch.distributed as dist

    group = known()
    if group is not None:
        with suppress(ValueError):  # torch has ended it
            dist.destroy_process_group(group)

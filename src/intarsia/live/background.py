"""Saving while training goes on: a copy is taken at once, and written aside.

The copy's memory is kept for the next save, so that taking it costs one pass over memory.  Ranks
meet on a process group of their own, which no collective of the training disturbs.  A save is
finished before its process ends, and one that failed unnoticed makes the process fail.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # ends its pools when it hears of the exit, so it must come first
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache
from multiprocessing.util import Finalize
from pathlib import PurePath
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
import torch.distributed as dist

from intarsia.errors import UsageError, check_flags
from intarsia.live.model.contents import check_given
from intarsia.live.report import Saved
from intarsia.live.saving import copying
from intarsia.live.saving.snapshot import Snapshot, check_config, snapshot
from intarsia.live.saving.write import write
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress
from intarsia.run.ranks.apart import Apart
from intarsia.run.ranks.crew import Crew, Shared, check_alike, ranks_of_model
from intarsia.run.ranks.waiting import connected
from intarsia.store.reading.lookup import absolute, given

_last: Saving | None = None
_one_at_a_time = threading.RLock()
"""Held by the thread that begins a save in the background, or waits for one: they share the memory of the copy."""
os.register_at_fork(after_in_child=_one_at_a_time._at_fork_reinit)  # type: ignore[attr-defined]
_groups: WeakKeyDictionary[Any, ReferenceType[Any]] = WeakKeyDictionary()
"""The group that stands aside each default group; torch alone keeps them, and so can end them."""

PAUSE_SECONDS = 0.005
"""How often one who waits for a save looks whether it has ended."""


class Saving:
    """A save that goes on in the background; `wait` gives its result or raises its error."""

    def __init__(self, path: str | PurePath) -> None:
        self.path = str(path)
        self.pause_seconds = 0.0
        self._result: Saved | None = None
        self._error: BaseException | None = None
        self._raised = False
        self._ended = True
        self._process = os.getpid()

    @property
    def done(self) -> bool:
        """Whether it ended, well or not; a process that was forked meanwhile has no part in it."""
        return self._ended or os.getpid() != self._process

    @property
    def failure(self) -> BaseException | None:
        """What went wrong, if it was not raised yet."""
        return self._error if self.done and not self._raised else None

    def wait(self) -> Saved:
        """Wait for the end; raise what went wrong."""
        self._join()
        if self._error is not None:
            self._raised = True
            raise self._error
        assert self._result is not None
        return self._result

    def _join(self) -> None:
        # Python 3.11 calls a thread dead after an interrupt of `join()`; a handler of signals may wait inside of this.
        while not self.done:
            time.sleep(PAUSE_SECONDS)

    def _start(self, work: Callable[[], Saved]) -> None:
        go = threading.Event()

        def run() -> None:
            go.wait()
            try:
                if not self._ended:
                    self._result = work()
            except BaseException as error:
                self._error = error
            finally:
                self._ended = True

        try:
            self._ended = False
            threading.Thread(target=run, name="intarsia-save").start()
        except BaseException:  # after an interrupt, there may be a thread all the same
            self._ended = True
            raise
        finally:
            # A thread that worked at once would keep the interpreter from the training for its turn of 5 ms.
            go.set()


def save(
    path: str | PurePath,
    model: Any,
    optimizer: Any = None,
    extra: Mapping[str, Any] | None = None,
    background: bool = False,
    *,
    config: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    latest: bool | None = None,
    group: Any = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Saved | Saving:
    """Save a model, an optimizer and `extra` values as a sharded DCP checkpoint; collective.

    `path` appears when it is whole, or not at all.  Where its name ends in a number, the file
    `latest` beside it names it then, unless that names another series (`latest=True` takes it
    over, `latest=False` leaves it alone).  `group` is the process group whose ranks save together (a
    pipeline stage's, say), if not all.  With `background` the call returns when a copy is
    taken; one save is under way at a time.  What went wrong is raised by `wait()` or by the next
    save or load; the process does not end before its saves, and fails if one failed unnoticed.
    """
    check_flags(
        background=background, overwrite=overwrite, latest=False if latest is None else latest
    )
    with _one_at_a_time if background else nullcontext():
        finish_last()
        started = time.perf_counter()
        team = ranks_of_model(group)
        aside = _aside(team, background=background)
        with aside.together() as said:
            said.value = None if background else _HERE
            check_given(model)
            check_config(config)
            take = copying.copy_of if background else snapshot
            what = take(model, optimizer, extra, config)
            options = dict[str, Any](overwrite=overwrite, latest=latest, progress=progress)
            options["workers"] = Budget.of(None, workers).workers
            where = absolute(given(path))  # the training may go to another folder meanwhile
        _check_background(said)
        if not background:
            return write(where, what, team, **options)
        _finish_before_the_end(os.getpid())
        if threading.current_thread() is threading.main_thread():
            _finish_before_a_signal(os.getpid())
        saving = Saving(path)
        saving.pause_seconds = time.perf_counter() - started
        global _last
        _last = saving  # known before it begins: an interrupt cannot hide it
        saving._start(lambda: _write_aside(where, what, aside, options))
        return saving


def finish_last() -> None:
    """Wait for the save that is under way; raise what went wrong, if it was not raised yet."""
    global _last
    with _one_at_a_time:
        before = _last
        if before is not None:
            before._join()
            _last = None
            if before.failure is not None:
                before.wait()


def _write_aside(
    path: str | PurePath, what: Snapshot, aside: Crew, options: Mapping[str, Any]
) -> Saved:
    try:
        return write(path, what, aside, **options)
    finally:
        if aside.apart is not None:
            aside.apart.close()


def release() -> None:
    """Give back the memory that background saves keep for their copies."""
    with _one_at_a_time:
        if _last is not None and not _last.done:
            raise UsageError(
                f"{_last.path} is still being saved from this memory",
                hint="call wait() on its handle first",
            )
        copying.release_copy()


_HERE = "here"
"""What a rank says that does not save in the background; one that does says nothing, which is quicker."""


def _check_background(said: Shared) -> None:
    """Raise on every rank where some save in the background and some do not: they would wait for each other."""
    check_alike([{"background": str(each != _HERE)} for each in said.values])


def _aside(team: Crew, *, background: bool) -> Crew:
    """The same ranks on a group of their own, made by the first save in the background, and held until a save has ended."""
    if team.size == 1:
        return team
    whose = team.group or dist.group.WORLD
    known = _groups.get(whose)
    group = known() if known else None
    if group is None and not background:
        return team
    if group is None:
        with team.together() as said:
            pass  # new_group waits half an hour for a rank that is gone; here it is missed at once
        _check_background(said)
        # Only the ranks of a group that was given come here.
        ranks = dist.get_process_group_ranks(team.group) if team.group else None
        with connected(team.rank, team.size):
            group = dist.new_group(
                ranks, backend="gloo", use_local_synchronization=ranks is not None
            )
        _groups[whose] = ref(group)
        atexit.register(_leave, ref(group))
    return replace(team, apart=Apart(group._get_backend(torch.device("cpu")), team.size))


def _leave(known: ReferenceType[Any]) -> None:
    """End a group that the script left open, while its threads can still give back what they hold."""
    group = known()
    if group is not None:
        with suppress(ValueError):  # torch has ended it
            dist.destroy_process_group(group)


@cache
def _finish_before_the_end(process: int) -> None:
    """Have the end of this process wait for its last save, whatever ends it."""
    assert concurrent.futures.thread
    # Later than this no pool takes work any more; `atexit` would be too late.
    threading._register_atexit(_finish)  # type: ignore[attr-defined]
    atexit.register(_fail_if_unnoticed)
    Finalize(None, _end_of_forked, exitpriority=-100)  # after all others


@cache
def _finish_before_a_signal(process: int) -> None:
    """The same for SIGTERM; Python takes handlers from the main thread alone."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end_after_saving)


def _finish() -> None:
    if _last is not None:
        _last._join()


def _end_of_forked() -> None:
    """The same for a process that `multiprocessing` forked: it ends without `atexit`, its threads last of all."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    if sys.exc_info()[0] in (None, SystemExit):
        _fail_if_unnoticed()
    else:  # the error of the training is still to be shown, and makes the process fail
        _print_failure()


def _fail_if_unnoticed() -> None:
    """Print the error of a save that nobody waited for, and end with the status of a failure."""
    if not _print_failure():
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(1)


def _end_after_saving(number: int, frame: Any) -> None:
    """Let a save come to its end within the grace that a scheduler gives, then end as asked."""
    if _last is not None and not _last.done:
        text = f"intarsia: finishing the save of {_last.path} before the process ends"
        print(text, file=sys.stderr, flush=True)
        _last._join()
    _print_failure()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _print_failure() -> bool:
    """Print the error of the last save that nobody waited for; whether there is one."""
    if _last is None or _last.failure is None:
        return False
    print(f"intarsia: {_last.path} was not saved: {_last.failure}", file=sys.stderr, flush=True)
    return True

"""A process that is forked from this one, which has torch already, and gets into trouble at a call to its disk."""

from __future__ import annotations

import atexit
import io
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from intarsia.store.local import swap, transaction
from tests.faults.failing_process import prepare

CALLS = (
    "close", "fdatasync", "fstat", "fsync", "listdir", "lstat", "mkdir", "open", "preadv", "pwritev",
    "rename", "replace", "rmdir", "stat", "truncate", "unlink", "write",
)  # fmt: skip
CHANGING = ("fdatasync", "fsync", "mkdir", "pwritev", "rename", "replace", "truncate", "write")
"""Calls that a full disk refuses."""
SECONDS = 60
_numbers = count()
CRASHED = 70


@dataclass(frozen=True)
class Trouble:
    """What happens just before the `at`-th of the `calls` below `under`, and at all that follow if it `lasts`.

    `limit_bytes` is the largest file that may be written, `pause` how long each write takes.
    """

    at: int = 0
    act: Callable[[], None] = lambda: None
    lasts: bool = False
    calls: Sequence[str] = CALLS
    limit_bytes: int | None = None
    pause: float = 0.0


CALM = Trouble()


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit status, or minus the signal; what it printed, the calls it made,
    and how many descriptors it had left open."""

    status: int
    out: str
    err: str
    calls: int
    descriptors: int

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    def __str__(self) -> str:
        return f"status {self.status}, {self.calls} calls, {self.descriptors} descriptors\n{self.out}{self.err}"


class Child:
    """A forked process that does some work; `wait` for its end."""

    def __init__(self, folder: Path, work: Callable[[], object], trouble: Trouble = CALM) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.base = folder / f"child-{next(_numbers)}"
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            status = CRASHED
            try:
                status = _live(self.base, work, trouble)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)

    def wait(self, seconds: float = SECONDS) -> Ended:
        """Its end; one that takes longer is killed, and that is an error."""
        deadline, status, pid = time.monotonic() + seconds, 0, 0
        while not pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid and time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"it hung: {self._text('out')}{self._text('err')}")
            time.sleep(0.002)
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            pass
        else:
            os.killpg(self.pid, signal.SIGKILL)
            raise AssertionError("it left processes behind")
        calls, left = (self._text("counts") or "0 0").split()
        return Ended(
            os.waitstatus_to_exitcode(status), self._text("out"), self._text("err"), int(calls), int(left)
        )  # fmt: skip

    def _text(self, what: str) -> str:
        path = self.base.with_suffix(f".{what}")
        return path.read_text(errors="replace") if path.exists() else ""


def _live(base: Path, work: Callable[[], object], trouble: Trouble) -> int:
    os.setsid()
    atexit._clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for number, what in ((1, "out"), (2, "err")):
        fd = os.open(base.with_suffix(f".{what}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(fd, number)
        os.close(fd)
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w", closefd=False)) for n in (1, 2))
    prepare(2048, eager=False)
    torch.set_num_threads(
        1
    )  # torch's pool is not that of a forked process, and mended by one thread
    before = len(os.listdir("/proc/self/fd"))
    honest_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    made = _get_into(trouble)
    status = 0
    try:
        work()
    except SystemExit as stop:
        status = int(stop.code or 0)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    made.over = True
    resource.setrlimit(resource.RLIMIT_FSIZE, honest_limit)
    left = len(os.listdir("/proc/self/fd")) - before
    base.with_suffix(".counts").write_text(f"{made.count} {left}")
    return status


@dataclass
class _Made:
    count: int = 0
    over: bool = False


def _get_into(trouble: Trouble) -> _Made:
    """Stand before the calls of this process."""
    made, lock = _Made(), threading.Lock()

    def before(name: str, honest: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if not made.over:
                with lock:
                    made.count += 1
                    due = trouble.at and (
                        made.count >= trouble.at if trouble.lasts else made.count == trouble.at
                    )
                if name == "pwritev":
                    time.sleep(trouble.pause)
                if due and name == "close":  # whatever it says, the file is closed
                    honest(*arguments, **named)
                    return trouble.act()
                if due:
                    trouble.act()
            return honest(*arguments, **named)

        return call

    for name in trouble.calls:
        setattr(os, name, before(name, getattr(os, name)))
    swap._exchange = before("exchange", swap._exchange)  # type: ignore[assignment]
    if trouble.limit_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (trouble.limit_bytes, hard))
        transaction.shutil.disk_usage = lambda _: _Plenty  # type: ignore[assignment,attr-defined]
    return made


class _Plenty:
    """Stands for the answer of a disk with room."""

    free = 1 << 60

"""The command line in a process that counts what it asks of the kernel, and dies at a given call.

    python -m tests.faults.dying COUNTS DIE_AT MICROSECONDS convert SRC DST …

COUNTS is a file of three integers: calls, bytes written, bytes read.  They are kept in memory
that the file shares, so they outlive the process.  At call number DIE_AT (0: never) the process
sends itself SIGKILL; a write that is due then is done by half.  MICROSECONDS is how long each
write is held up, so that other processes may kill this one in the middle.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

CHANGING = ("fsync", "fdatasync", "rename", "write", "truncate", "mkdir", "unlink", "rmdir")
"""Calls beside reads and writes of tensors before which the process may die."""


class Counts(NamedTuple):
    calls: int
    written: int
    read: int


def counts(path: Path) -> Counts:
    """What a process counted, alive or dead."""
    data = path.read_bytes()
    return Counts(*(int.from_bytes(data[k : k + 8], "little") for k in (0, 8, 16)))


def main() -> None:
    path, die_at, hold_up = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) / 1e6
    path.write_bytes(bytes(24))
    with path.open("r+b") as file:
        shared = (ctypes.c_int64 * 3).from_buffer(mmap.mmap(file.fileno(), 24))
    lock = threading.Lock()

    def due() -> bool:
        with lock:
            shared[0] += 1
            return int(shared[0]) == die_at

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def mortal(honest: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if due():
                die()
            return honest(*arguments, **named)

        return call

    honest_write, honest_read = os.pwritev, os.preadv

    def pwritev(fd: int, buffers: list[Any], at: int) -> int:
        if due():
            whole = b"".join(buffers)
            honest_write(fd, [whole[: len(whole) // 2]], at)
            shared[1] += len(whole) // 2
            die()
        time.sleep(hold_up)
        count = honest_write(fd, buffers, at)
        with lock:
            shared[1] += count
        return count

    def preadv(fd: int, buffers: list[Any], at: int) -> int:
        count = honest_read(fd, buffers, at)
        with lock:
            shared[2] += count
        return count

    os.pwritev, os.preadv = pwritev, preadv
    for name in CHANGING:
        setattr(os, name, mortal(getattr(os, name)))
    from intarsia.cli.main import main
    from intarsia.run.windows import strips
    from intarsia.store.local import pwrite

    strips.LEAST_BYTES = pwrite.COMPILED_BYTES = 1 << 40  # what is counted here goes through memory
    main(sys.argv[4:])


if __name__ == "__main__":
    main()

"""The command line on a disk that fails on demand: `failing_disk.c` stands before its system calls.

`Disk` is a child process with that library loaded, which runs one command after another and says
how each ended; so a sweep over every call costs one start of Python.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import environment

SOURCE = Path(__file__).with_name("failing_disk.c")
CALLS = "orwstanlfudpmivqbck"
"""Every kind of call that can be made to fail; `failing_disk.c` says what the letters mean."""


@dataclass(frozen=True)
class Trouble:
    """What a disk does: to paths that hold `under`, at the `at`-th of the `calls`, or every n-th time."""

    under: str = ""
    calls: str = CALLS
    at: int = 0
    errno: int = 0
    stays: bool = False
    short_every: int = 0
    interrupt_every: int = 0
    log: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a command ended, how many calls that count it made, how many of them in no block that ranks
    end together, and which of them failed."""

    status: int
    out: str
    err: str
    calls: int
    unheard: int
    failed: str


def library(folder: Path) -> Path:
    """The compiled library; the test is skipped where no compiler is."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (`cc`) is installed, which the failing disk is built with")
    if not sys.platform.startswith("linux"):
        pytest.skip("the failing disk stands before system calls of Linux")
    made = folder / "failing_disk.so"
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Werror",
            "-o",
            made,
            SOURCE,
            "-lpthread",
            "-ldl",
        ],
        check=True,
    )
    return made


class Disk:
    """A process whose disk can be made to fail.

    `eager` has the journal sync as often as it can, as it does in a run of hours; `moving` has small windows go
    from file to file, as large ones do.
    """

    module = "tests.faults.failing_process"

    def __init__(
        self, built: Path, *, window_bytes: int = 2048, eager: bool = False, moving: bool = False
    ) -> None:
        options = (str(window_bytes), str(int(eager)), str(int(moving)))
        self.child = subprocess.Popen(
            [sys.executable, "-m", self.module, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(LD_PRELOAD=str(built)),
        )

    def run(self, *words: object, trouble: Trouble | None = None) -> Outcome:
        """Run a command of `intarsia` while the disk is in some trouble."""
        return Outcome(**self.ask({"words": words, **asdict(trouble or Trouble())}))

    def ask(self, asked: dict[str, Any]) -> Any:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps(asked, default=str) + "\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        assert answer, f"the process died of {asked}"
        return json.loads(answer)

    def close(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(30)


class Ranks(Disk):
    """Two ranks that share every command, of which one has a disk that can be made to fail."""

    module = "tests.faults.failing_ranks"

    def both(self, *words: object, trouble: Trouble | None = None, rank: int = 0) -> list[Outcome]:
        """How a command ended on each of the two."""
        told = self.ask({"words": words, "rank": rank, **asdict(trouble or Trouble())})
        return [Outcome(**each) for each in told]

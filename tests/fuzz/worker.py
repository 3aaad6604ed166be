"""One process of the fuzzer: it damages files, keeps those that go a new way, and tells of harm.

What it does at any moment stands in a file that it shares with its parent, so that a case which
ends the process, or never ends, is known all the same.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import signal
import struct
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from intarsia.errors import IntarsiaError
from tests.fuzz.coverage import Coverage, Monitored, coverage
from tests.fuzz.mutate import MAX_BYTES, mutated
from tests.fuzz.parsers import Parser, parsers_at

MEMORY_BYTES = 1 << 30
CASE_SECONDS = 20.0
SLICE_SECONDS = 0.2
POOL = 2000
_HEAD = struct.Struct("<QdIH")


class TooLongError(BaseException):
    """A case has taken all of its processor time."""


def harm(parser: Parser, data: bytes) -> str | None:
    """What a file does to a parser beyond being refused; None where all is well."""
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
    try:
        parser.read(data)
    except IntarsiaError:
        pass
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-6:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def limited() -> None:
    """Bound this process's memory to little more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)


def _too_long(_: int, __: FrameType | None) -> None:
    raise TooLongError(f"more than {CASE_SECONDS:.0f} s")


def kind_of_harm(said: str) -> str:
    """The same for what goes wrong in the same place: the last lines of code, and the error's name."""
    lines = [line.strip() for line in said.splitlines() if line.startswith('  File "')]
    return "\n".join([*lines[-2:], said.splitlines()[-1].partition(":")[0]])


@dataclass
class Board:
    """What a process is at, shared with its parent: cases so far, since when, and the case itself."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.exists():
            self.path.write_bytes(bytes(_HEAD.size + MAX_BYTES))
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def begin(self, count: int, parser: int, data: bytes) -> None:
        self._map[_HEAD.size : _HEAD.size + len(data)] = data
        self._map[: _HEAD.size] = _HEAD.pack(count, time.monotonic(), len(data), parser)

    def read(self) -> tuple[int, float, int, bytes]:
        """The number of the case, when it began, its parser and its data."""
        count, since, size, parser = _HEAD.unpack(self._map[: _HEAD.size])
        return count, since, parser, bytes(self._map[_HEAD.size : _HEAD.size + size])


@dataclass
class Pool:
    """The files of a parser that mutations start from; of two, the one that was quicker to read is taken."""

    files: list[bytes]
    seconds: list[float] = field(default_factory=list)

    def choose(self, chance: random.Random) -> bytes:
        least = max(0, len(self.files) - 20) if chance.random() < 0.5 else 0
        pair = [chance.randrange(least, len(self.files)) for _ in range(2)]
        return self.files[min(pair, key=self.seconds.__getitem__)]

    def add(self, data: bytes, seconds: float) -> None:
        if len(self.files) < POOL:
            self.files.append(data)
            self.seconds.append(seconds)


@dataclass
class Worker:
    """The state of one process."""

    number: int
    seed: int
    place: Path
    only: str | None = None
    cases: Counter[str] = field(default_factory=Counter)
    grown: Counter[str] = field(default_factory=Counter)
    known: set[str] = field(default_factory=set)

    def run(self, until: float) -> None:
        """Fuzz until then."""
        warnings.simplefilter("ignore")
        os.environ["HF_HUB_OFFLINE"] = "1"
        parsers = parsers_at(self.place / f"files-{self.number}-{self.seed}")
        chosen = [(k, p) for k, p in enumerate(parsers) if self.only in (None, p.name)]
        pools = {p.name: Pool(p.corpus()) for _, p in chosen}
        everything = [data for p in parsers for data in p.corpus()]
        board, chance, watching = Board(self.place / f"board-{self.number}"), random.Random(self.seed), coverage()  # fmt: skip
        limited()
        for _, parser in chosen:
            for data in pools[parser.name].files:
                started = time.process_time()
                self.tell(parser, data, harm(parser, data))
                taken = time.process_time() - started
                pools[parser.name].seconds.append(taken)
                if taken < SLICE_SECONDS:
                    with watching.watch():
                        harm(parser, data)
        while time.monotonic() < until:
            for k, parser in chosen:
                ends = time.process_time() + SLICE_SECONDS
                while time.process_time() < ends and time.monotonic() < until:
                    self.one(k, parser, pools[parser.name], everything, chance, board, watching)
                self.say()
            if isinstance(watching, Monitored):
                watching.renew()
        self.keep(pools, {p.name: len(p.corpus()) for _, p in chosen})

    def one(self, k: int, parser: Parser, pool: Pool, everything: Sequence[bytes], chance: random.Random, board: Board, watching: Coverage) -> None:  # fmt: skip
        """One case."""
        data = mutated(pool.choose(chance), everything, chance)
        self.cases[parser.name] += 1
        count = self.cases.total()
        board.begin(count, k, data)
        if count % watching.share:
            self.tell(parser, data, harm(parser, data))
            return
        started = time.process_time()
        with watching.watch() as fresh:
            said = harm(parser, data)
        if said is not None:
            said = harm(parser, data)  # being watched takes time that the case itself may not take
        self.tell(parser, data, said)
        if fresh and said is None:
            self.grown[parser.name] += 1
            pool.add(data, time.process_time() - started)

    def tell(self, parser: Parser, data: bytes, said: str | None) -> None:
        """Leave word of harm, once for each kind of it."""
        if said is None or kind_of_harm(said) in self.known:
            return
        self.known.add(kind_of_harm(said))
        name = f"harm-{self.number}-{self.seed}-{len(self.known)}"
        (self.place / f"{name}.data").write_bytes(data)
        row = {"parser": parser.name, "said": said, "data": f"{name}.data"}
        (self.place / f"{name}.new").write_text(json.dumps(row))
        (self.place / f"{name}.new").rename(self.place / f"{name}.json")

    def say(self) -> None:
        """Leave the counts."""
        path = self.place / f"counts-{self.number}-{self.seed}.json"
        usage = resource.getrusage(resource.RUSAGE_SELF)
        row = {"cases": self.cases, "grown": self.grown, "seconds": usage.ru_utime + usage.ru_stime}
        path.with_suffix(".new").write_text(json.dumps(row))
        path.with_suffix(".new").rename(path)

    def keep(self, pools: dict[str, Pool], begun: dict[str, int]) -> None:
        """Leave what the pools have grown by."""
        for name, pool in pools.items():
            folder = self.place / "pools" / name
            folder.mkdir(parents=True, exist_ok=True)
            for k, data in enumerate(pool.files[begun[name] :]):
                (folder / f"{self.number}-{k}").write_bytes(data)

"""Fuzz every parser: `python -m tests.fuzz --minutes 10 --workers 8 [--out DIR] [--keep DIR]`.

What does harm is written to the corpus, where the tests find it from then on, and to `--out`.
With `--keep`, the files that went a new way through the code are kept as well, few for all ways.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.fuzz.coverage import Traced
from tests.fuzz.parsers import CORPUS, Parser, parsers_at
from tests.fuzz.worker import CASE_SECONDS, Board, Worker, harm, kind_of_harm

HANGS_SECONDS = 6 * CASE_SECONDS


@dataclass
class Fuzzer:
    """The parent: it starts the processes, replaces those that end, and gathers what they say."""

    place: Path
    parsers: list[Parser]
    asked: argparse.Namespace
    found: set[str] = field(default_factory=set)
    running: dict[int, tuple[BaseProcess, int]] = field(default_factory=dict)
    starts: int = 0
    broken: bool = False

    def run(self) -> None:
        until = time.monotonic() + 60 * self.asked.minutes
        for number in range(self.asked.workers):
            self.start(number, until)
        while self.running:
            time.sleep(0.2)
            self.gather()
            for number, (process, _) in list(self.running.items()):
                self.look_after(number, process, until)
        self.gather()

    def start(self, number: int, until: float) -> None:
        seed = self.asked.seed + self.starts
        self.starts += 1
        worker = Worker(number, seed, self.place, self.asked.parser)
        Board(self.place / f"board-{number}")
        process = multiprocessing.get_context("fork").Process(target=_work, args=(worker, until))
        process.start()
        self.running[number] = (process, seed)

    def look_after(self, number: int, process: BaseProcess, until: float) -> None:
        """Tell of a process that ended before its time, or that does not come back from a case."""
        count, since, parser, data = Board(self.place / f"board-{number}").read()
        name = self.parsers[parser].name
        if process.exitcode is None:
            if count and time.monotonic() > since + HANGS_SECONDS:
                os.kill(process.pid or 0, signal.SIGKILL)
                process.join()
                self.tell(name, data, f"does not end within {HANGS_SECONDS:.0f} s")
                self.again(number, until)
        elif process.exitcode < 0:
            self.tell(name, data, f"ends the process (signal {-process.exitcode})")
            self.again(number, until)
        else:
            self.broken = self.broken or process.exitcode > 0
            del self.running[number]

    def again(self, number: int, until: float) -> None:
        del self.running[number]
        (self.place / f"board-{number}").unlink()
        if time.monotonic() < until and self.starts < 20 * self.asked.workers:
            self.start(number, until)

    def gather(self) -> None:
        for path in self.place.glob("harm-*.json"):
            row = json.loads(path.read_text())
            path.unlink()
            self.tell(row["parser"], (self.place / row["data"]).read_bytes(), row["said"])

    def tell(self, parser: str, data: bytes, said: str) -> None:
        kind = f"{parser}: {kind_of_harm(said)}" if "File" not in said else kind_of_harm(said)
        if kind in self.found:
            return
        self.found.add(kind)
        for home in filter(None, (CORPUS, self.asked.out)):
            path = Path(home) / parser / hashlib.sha256(data).hexdigest()[:16]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if self.asked.out:
            path.with_suffix(".txt").write_text(said)
        print(f"{path}:\n{said}", flush=True)

    def table(self, elapsed: float) -> None:
        cases, grown, seconds = Counter[str](), Counter[str](), 0.0
        for path in self.place.glob("counts-*.json"):
            row = json.loads(path.read_text())
            cases.update(row["cases"])
            grown.update(row["grown"])
            seconds += row["seconds"]
        for parser in self.parsers:
            if parser.name in cases:
                print(f"{parser.name:<28}{cases[parser.name]:>12,} cases{grown[parser.name]:>8,} new ways")  # fmt: skip
        print(
            f"{cases.total():,} cases in {seconds / 3600:.3f} CPU hours on {self.asked.workers} workers"
            f" ({elapsed / 60:.1f} minutes), {len(self.found)} kinds of harm"
        )

    def keep(self, home: Path) -> None:
        """Keep the smallest files that together go every way that was found."""
        for parser in self.parsers:
            grown = [path.read_bytes() for path in (self.place / "pools" / parser.name).glob("*")]
            ways, kept = Traced(), 0
            for data in parser.corpus():
                with ways.watch():
                    harm(parser, data)
            for data in sorted(grown, key=lambda data: (len(data), data)):
                with ways.watch() as fresh:
                    harm(parser, data)
                if fresh:
                    kept += 1
                    path = home / parser.name / hashlib.sha256(data).hexdigest()[:16]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
            if grown:
                print(f"{parser.name:<28}{kept:>6} of {len(grown)} files are kept")


def _work(worker: Worker, until: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker.run(until)


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.fuzz")
    words.add_argument("--minutes", type=float, default=1.0)
    words.add_argument("--workers", type=int, default=1)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--parser")
    words.add_argument("--out", type=Path, help="also write what does harm here")
    words.add_argument("--keep", type=Path, help="write files that go new ways here")
    asked = words.parse_args()
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp("", "intarsia-fuzz-", memory if os.access(memory, os.W_OK) else None))  # fmt: skip
    started = time.monotonic()
    try:
        parsers = parsers_at(place / "files")
        if asked.parser not in (None, *(p.name for p in parsers)):
            words.error(f"parsers are {', '.join(p.name for p in parsers)}")
        fuzzer = Fuzzer(place, parsers, asked)
        fuzzer.run()
        fuzzer.table(time.monotonic() - started)
        if asked.keep:
            fuzzer.keep(asked.keep)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 2 if fuzzer.broken else 1 if fuzzer.found else 0


if __name__ == "__main__":
    raise SystemExit(main())

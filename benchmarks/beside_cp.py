"""Conversions timed beside `cp -r` of the same files, for the scripts that share this way of measuring.

Each job is a process of its own.  `cp -r` leaves its bytes in memory, our commits are synced, so a
copy that ends with a sync stands beside the plain one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
CONVERT = (sys.executable, "-m", "intarsia", "convert", "--memory", "512MiB", "--quiet")


@dataclass(frozen=True)
class Figure:
    """What one process took."""

    seconds: float
    peak_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class Setting:
    """What the command line asks for, and a folder to work in."""

    rounds: int
    gigabytes: float
    root: Path

    def layers(self, layer_bytes: int, rest_bytes: int) -> int:
        """How many layers make a model of about the size that is asked for."""
        return max(1, round((self.gigabytes * 1e9 - rest_bytes) / layer_bytes))


@contextmanager
def setting(description: str | None) -> Iterator[Setting]:
    """The options that the scripts share, and a folder that goes when they end."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument(
        "--folder", default=None, help="where to write; the system's default if not given"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        yield Setting(options.rounds, options.gigabytes, Path(scratch))


def in_child(function: Callable[..., int], *arguments: object) -> int:
    """Call a function in a fresh process: peak memory is inherited by those that this one starts."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def run(*command: str) -> Figure:
    """Run a process and take its figures."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(SRC)}, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed with {status}")
    seconds = time.perf_counter() - started
    return Figure(seconds, usage.ru_maxrss * 1024, usage.ru_oublock * 512)


def compare(
    at: Setting, source: Path, size: int, jobs: Mapping[str, Sequence[str]], bars: str
) -> None:
    """Run each job, which writes the folder `out`, in every round, and print the table of medians."""
    out = at.root / "out"
    commands = {
        "cp -r": ("cp", "-r", str(source), str(out)),
        "cp -r, synced": ("sh", "-c", f"cp -r {source} {out} && sync"),
        **jobs,
    }
    figures: dict[str, list[Figure]] = {name: [] for name in commands}
    for _ in range(at.rounds):
        for name, command in commands.items():
            os.sync()
            figures[name].append(run(*command))
            shutil.rmtree(out)
    middle = {name: statistics.median(f.seconds for f in rows) for name, rows in figures.items()}
    print(f"{size / 1e9:.2f} GB, {at.rounds} rounds, medians")
    print(
        f"{'job':<28}{'seconds':>9}{'x cp':>7}{'x synced':>10}{'peak MiB':>10}{'written / size':>16}"
    )
    for name, rows in figures.items():
        seconds = middle[name]
        ratios = f"{seconds / middle['cp -r']:>7.2f}{seconds / middle['cp -r, synced']:>10.2f}"
        peak = max(f.peak_bytes for f in rows) / 2**20
        written = statistics.median(f.written_bytes for f in rows) / size
        print(f"{name:<28}{seconds:>9.2f}{ratios}{peak:>10.0f}{written:>16.3f}")
    print(f"bars: {bars}")

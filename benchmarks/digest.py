"""Digests of a 2 GB model, beside reading alone, `sha256sum` and `xxh128sum` of the same files.

Each round reads every tensor and drops it, then takes the digests, from files in the page cache
(warm) and from files that were dropped from it (cold), on the same number of threads.  Prints
medians of wall and processor seconds, and ratios to reading alone.  `xxh128sum` is the command
where there is one, and else the package `xxhash`, which `make bench` installs.

    python benchmarks/digest.py [--rounds 5] [--gigabytes 2] [--folder DIR]
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from beside_cp import CONVERT, in_child, run, setting
from convert import HIDDEN, INNER, VOCAB, WIDTH, write_model

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import intarsia
from intarsia.planning.manifest import Logical
from intarsia.planning.window import windows
from intarsia.run.budget import Budget

LAYER_BYTES = 2 * HIDDEN * (WIDTH * 40 + 3 * INNER)
XXHASH = """
import sys, xxhash
for path in sys.argv[1:]:
    h = xxhash.xxh128()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            h.update(block)
"""
Times = tuple[float, float]
"""Wall and processor seconds."""


def read(path: Path, budget: Budget) -> None:
    """Read every logical tensor, window by window, as `verify` does."""
    with intarsia.open(path) as checkpoint:

        def one(x: Logical) -> None:
            proven = checkpoint.prover.tensor(x.name)
            for box in windows(x.shape, x.dtype.itemsize, budget.window_bytes):
                checkpoint.read_box(proven, box)

        with ThreadPoolExecutor(budget.workers) as pool:
            list(pool.map(one, checkpoint.manifest.logical.values()))


def timed(work: Callable[[], object]) -> Times:
    """What a piece of work takes, in this process and those that it waits for."""
    before, started = os.times(), time.perf_counter()
    work()
    wall, after = time.perf_counter() - started, os.times()
    return wall, sum(after[:4]) - sum(before[:4])


def drop(files: list[Path]) -> None:
    """Drop files from the page cache."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def jobs_on(path: Path, files: list[Path]) -> dict[str, Callable[[], object]]:
    """What is measured, by name; the first is what the others are held against."""
    budget = Budget.of()
    names = [str(file) for file in files]

    def command(*words: str) -> Callable[[], object]:
        return lambda: subprocess.run([*words, *names], check=True, stdout=subprocess.DEVNULL)

    jobs: dict[str, Callable[[], object]] = {
        "read alone": lambda: read(path, budget),
        "digest": lambda: intarsia.digest(path),
        "digest --secure": lambda: intarsia.digest(path, secure=True),
        "sha256sum": command("sha256sum"),
    }
    if shutil.which("xxh128sum"):
        jobs["xxh128sum"] = command("xxh128sum")
    elif importlib.util.find_spec("xxhash"):
        jobs["xxh128 (package)"] = command(sys.executable, "-c", XXHASH)
    return jobs


def measure(what: str, path: Path, rounds: int) -> None:
    """Print the table of one checkpoint."""
    files = [p for p in path.rglob("*") if p.suffix in (".safetensors", ".distcp")]
    jobs = jobs_on(path, files)
    print(
        f"\n{what}: {sum(f.stat().st_size for f in files) / 1e9:.2f} GB, {rounds} rounds, medians"
    )
    print(f"{'':<8}{'job':<20}{'wall s':>9}{'x read':>8}{'cpu s':>9}{'x read':>8}")
    for state in ("warm", "cold"):
        times: dict[str, list[Times]] = {name: [] for name in jobs}
        jobs["read alone"]()
        for _ in range(rounds):
            for name, job in jobs.items():
                if state == "cold":
                    drop(files)
                times[name].append(timed(job))
        middle = {
            name: tuple(statistics.median(column) for column in zip(*rows, strict=True))
            for name, rows in times.items()
        }
        base = middle["read alone"]
        for name, (wall, cpu) in middle.items():
            ratios = wall / base[0], cpu / base[1]
            print(f"{state:<8}{name:<20}{wall:>9.2f}{ratios[0]:>8.2f}{cpu:>9.2f}{ratios[1]:>8.2f}")


def main() -> None:
    with setting(__doc__) as at:
        layers = at.layers(LAYER_BYTES, 4 * VOCAB * HIDDEN)
        hf, dcp = at.root / "hf", at.root / "dcp"
        in_child(write_model, hf, layers)
        run(*CONVERT, str(hf), str(dcp), "--to", "dcp", "--mesh", "tp=2,fsdp=3")
        measure("hf", hf, at.rounds)
        measure("dcp on tp=2,fsdp=3", dcp, at.rounds)
        print("\nbar: digest at most 1.25 x read alone")


if __name__ == "__main__":
    main()

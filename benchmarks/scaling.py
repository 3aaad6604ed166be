"""How digests, checks and conversions grow with the workers, each beside what plain threads reach.

A dense model and a mixture of experts with thousands of tensors, in memory (tmpfs), so that no disk
waits.  At each number of workers ours and its limit take turns: reading with a CRC-32 and a sum for
`digest` and `verify A`, two reads and a comparison for `verify A B`, a copy of the same files, one
thread a file, for `convert`.  Then the command line from start to end, and (up to) eight processes of torchrun.

    PYTHONPATH=src python -m benchmarks.scaling [--gigabytes 0.5] [--workers 1,2,4] [--models llama,moe]
        [--only digest,verify,pair,convert,command,torchrun] [--rounds 3] [--minutes 9] [--out DIR]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import limits
from benchmarks.measure import (
    CORES,
    Cost,
    Row,
    here,
    keep,
    line,
    machine,
    process,
    remove,
    take_turns,
    versions,
)  # fmt: skip
from benchmarks.models import MODELS, data_files, write_hf

PARTS = ("digest", "verify", "pair", "convert", "command", "torchrun")
MESH = "tp=2,fsdp=4"
PROCESSES = min(8, CORES)
RANKS = f"torchrun, {PROCESSES} processes"
SMALL = (
    "intarsia digest, 1 MB", "one process, 1 MB", f"{RANKS}, 1 MB", f"{RANKS}, python -c pass", "python -c pass",
)  # fmt: skip
"""Jobs that show what a start costs."""
Jobs = Mapping[str, Callable[[], Cost]]


@dataclass(frozen=True)
class Place:
    """The checkpoints of one model, and where a job may write."""

    model: str
    nbytes: int
    hf: Path
    dcp: Path
    out: Path
    small: Path


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    parts: Sequence[str]
    workers: Sequence[int]
    rounds: int
    seconds: float
    until: float


def digest(at: Place, workers: int) -> tuple[Jobs, str]:
    import intarsia

    files = data_files(at.hf)
    return {
        "read": here(lambda: limits.read(files, workers)),
        "read + CRC + sum": here(lambda: limits.read_and_sum(files, workers)),
        "digest": here(lambda: intarsia.digest(at.hf, workers=workers)),
    }, "read + CRC + sum"


def verify(at: Place, workers: int) -> tuple[Jobs, str]:
    import intarsia

    files = data_files(at.hf)

    def sound() -> None:
        found = intarsia.verify(at.hf, workers=workers)
        assert found, found

    return {
        "read + CRC + sum": here(lambda: limits.read_and_sum(files, workers)),
        "verify A": here(sound),
    }, "read + CRC + sum"


def pair(at: Place, workers: int) -> tuple[Jobs, str]:
    import intarsia

    a, b = data_files(at.hf), data_files(at.dcp)

    def equal() -> None:
        found = intarsia.verify(at.hf, at.dcp, workers=workers)
        assert found, found

    return {
        "two reads + compare": here(lambda: limits.read_and_compare(a, b, workers)),
        "verify A B": here(equal),
    }, "two reads + compare"


def convert(at: Place, workers: int) -> tuple[Jobs, str]:
    import intarsia

    files = data_files(at.hf)

    def ours(source: Path, **options: Any) -> Callable[[], Cost]:
        return here(
            lambda: intarsia.convert(
                source, at.out, workers=workers, max_shard_size="500MB", **options
            )
        )

    return {
        "copy": here(lambda: limits.copy(files, at.out, workers)),
        "hf -> dcp": ours(at.hf, to="dcp", mesh=MESH),
        "hf -> dcp, no digests": ours(at.hf, to="dcp", mesh=MESH, digests=False),
        "hf -> hf": ours(at.hf, to="hf"),
        "dcp -> hf": ours(at.dcp, to="hf"),
    }, "copy"


def command(at: Place, workers: int) -> tuple[Jobs, str]:
    import intarsia

    words = (sys.executable, "-m", "intarsia", "digest", "--quiet")
    return {
        "digest, in this process": here(lambda: intarsia.digest(at.hf)),
        "intarsia digest": process(*words, at.hf),
        "intarsia digest, 1 MB": process(*words, at.small),
        "python -c pass": process(sys.executable, "-c", "pass"),
    }, "digest, in this process"


def torchrun(at: Place, workers: int) -> tuple[Jobs, str]:
    ours = ("-m", "intarsia", "convert", "--quiet")
    there = ("--to", "dcp", "--mesh", MESH)
    ranks = (
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}",
    )  # fmt: skip
    empty = process(*ranks, "--no-python", sys.executable, "-c", "pass")
    empty()  # the bytecode of torch is kept, as it is once torch is installed
    return {
        "one process": process(sys.executable, *ours, at.hf, at.out, *there),
        "one process, 1 MB": process(sys.executable, *ours, at.small, at.out, *there),
        RANKS: process(*ranks, *ours, at.hf, at.out, *there),
        f"{RANKS}, 1 MB": process(*ranks, *ours, at.small, at.out, *there),
        f"{RANKS}, python -c pass": empty,
    }, "one process"


def measure(at: Place, asked: Asked) -> Iterator[tuple[str, list[Row]]]:
    """The rows of every part for one model, as they are found."""
    made: dict[str, Callable[[Place, int], tuple[Jobs, str]]] = {
        "digest": digest, "verify": verify, "pair": pair, "convert": convert, "command": command, "torchrun": torchrun,
    }  # fmt: skip
    for part in asked.parts:
        once = part in ("command", "torchrun")
        for workers in [CORES] if once else asked.workers:
            if time.monotonic() > asked.until:
                print(f"left out for want of time: {part} with {workers} workers", flush=True)
                continue
            jobs, beside = made[part](at, workers)
            where = {"model": at.model, **({} if once else {"workers": workers})}
            yield (
                part,
                take_turns(
                    jobs, where, {n: at.nbytes for n in jobs if n not in SMALL}, rounds=asked.rounds, seconds=asked.seconds,
                    beside=[beside], after=lambda: remove(at.out), warm=int(part == "command"),
                ),
            )  # fmt: skip


def warm_up(small: Path, out: Path) -> None:
    """Import what the jobs import, on a model of a megabyte."""
    import intarsia

    intarsia.digest(small)
    intarsia.convert(small, out, to="dcp", mesh=MESH)
    intarsia.verify(small, out)
    intarsia.verify(small)
    remove(out)
    process(sys.executable, "-m", "intarsia", "convert", "--quiet", small, out, "--to", "dcp")()
    remove(out)


def folder_for(nbytes: float) -> str | None:
    """Memory where it has room for what is written, and else the system's folder."""
    shm = Path("/dev/shm")
    return str(shm) if shm.is_dir() and shutil.disk_usage(shm).free > 4 * nbytes else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=0.5)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--workers", default="1,2,4,8,16")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="after which none is repeated")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no more is begun")
    parser.add_argument("--folder", default=None, help="where to work; memory if there is room")
    parser.add_argument("--out", type=Path, default=None, help="where the results go")
    given = parser.parse_args()
    workers = [n for n in map(int, given.workers.split(",")) if n <= CORES]
    asked = Asked(
        [part for part in PARTS if part in given.only.split(",")],
        workers,
        given.rounds,
        given.seconds,
        time.monotonic() + 60 * given.minutes,
    )
    import intarsia

    print(machine(), versions(), f"CRC-32 of the limit: {limits.CRC}", sep="\n", flush=True)
    rows: dict[str, list[Row]] = {}
    for name in given.models.split(","):
        folder = given.folder or folder_for(given.gigabytes * 1e9)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            root = Path(scratch)
            started = time.perf_counter()
            nbytes = write_hf(root / "hf", MODELS[name](given.gigabytes))
            write_hf(root / "small", MODELS[name](0.001))
            at = Place(
                name, nbytes, root / "hf", root / "dcp", root / "out" / "made", root / "small"
            )
            at.out.parent.mkdir()
            warm_up(at.small, at.out)
            if "pair" in asked.parts or "convert" in asked.parts:
                intarsia.convert(at.hf, at.dcp, to="dcp", mesh=MESH)
            print(
                f"\n{name}: {nbytes / 1e9:.2f} GB, {len(data_files(at.hf))} files in {root},"
                f" made in {time.perf_counter() - started:.1f} s",
                flush=True,
            )
            for part, found in measure(at, asked):
                rows.setdefault(part, []).extend(found)
                print(*map(line, found), sep="\n", flush=True)
                keep(f"scaling-{part}", ABOUT[part], rows[part], given.out)


ABOUT = {
    "digest": "`intarsia.digest` of a checkpoint in memory, beside reading it with a CRC-32 and a sum",
    "verify": "`intarsia.verify` of one checkpoint in memory, beside reading it with a CRC-32 and a sum",
    "pair": "`intarsia.verify` of two formats of one model in memory, beside reading and comparing both",
    "convert": "`intarsia.convert` in memory, beside a copy of the same files, one thread a file",
    "command": "the command `intarsia digest` from start to end, beside the work in one process",
    "torchrun": "the command `intarsia convert` on several processes, beside one, and what starting them takes",
}


if __name__ == "__main__":
    main()

"""Jobs that take turns: their times, their ratios to one another, and what the kernel counted.

A `Row` is one job at one point (a model, a number of workers, a size); the ratios in it are to jobs
that took turns with it, so the machine was the same for both.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = (
    "intarsia", "torch", "transformers", "safetensors", "numpy", "isal", "accelerate", "megatron-core", "fastsafetensors",
    "runai-model-streamer", "xxhash",
)  # fmt: skip
CORES = len(os.sched_getaffinity(0))
Work = Callable[[], Any]


@dataclass(frozen=True)
class Cost:
    """What one run of a job took; None where the kernel does not say."""

    seconds: float
    cpu_seconds: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Row:
    """The runs of one job at one point, and the ratios of their median to those of other jobs."""

    job: str
    at: Mapping[str, Any]
    costs: Sequence[Cost]
    nbytes: int = 0
    beside: Mapping[str, float] = field(default_factory=dict)
    beside_cpu: Mapping[str, float] = field(default_factory=dict)
    """The same of seconds of CPU, which other work on the machine disturbs less."""
    failed: str = ""
    """Why there are no costs: what is not installed here, or what a job raised."""

    @property
    def seconds(self) -> float:
        return statistics.median(cost.seconds for cost in self.costs)

    def as_json(self) -> dict[str, Any]:
        if self.failed:
            return {"job": self.job, "at": dict(self.at), "failed": self.failed}
        times = [cost.seconds for cost in self.costs]
        found: dict[str, Any] = {
            "job": self.job,
            "at": dict(self.at),
            "rounds": len(times),
            "median_s": _short(self.seconds),
            "least_s": _short(min(times)),
            "spread": _short((max(times) - min(times)) / self.seconds),
        }
        if self.nbytes:
            found["bytes"] = self.nbytes
            found["gb_per_s"] = _short(self.nbytes / 1e9 / self.seconds)
        for name, label in (("read_bytes", "read"), ("written_bytes", "written")):
            counts = [x for cost in self.costs if (x := getattr(cost, name)) is not None]
            if counts and self.nbytes:
                found[f"{label}_ratio"] = round(statistics.median(counts) / self.nbytes, 3)
        cpu = [cost.cpu_seconds for cost in self.costs if cost.cpu_seconds is not None]
        if cpu:
            found["cpu_s"] = _short(statistics.median(cpu))
        peaks = [cost.peak_bytes for cost in self.costs if cost.peak_bytes is not None]
        if peaks:
            found["peak_mib"] = round(max(peaks) / 2**20)
        if self.beside:
            found["beside"] = {name: _short(ratio) for name, ratio in self.beside.items()}
        if self.beside_cpu:
            found["beside_cpu"] = {name: _short(x) for name, x in self.beside_cpu.items()}
        return found


def here(work: Work) -> Callable[[], Cost]:
    """A job in this process; the memory is the most that the process had meanwhile."""

    def run() -> Cost:
        gc.collect()
        _forget_peak()
        before = kernel_says()
        cpu, started = time.process_time(), time.perf_counter()
        work()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        after = kernel_says()
        read, written = (
            after[key] - before[key] if key in after and key in before else None
            for key in ("rchar", "wchar")
        )
        return Cost(seconds, cpu, read, written, after.get("VmHWM"))

    return run


def process(*words: str | Path, env: Mapping[str, str] | None = None) -> Callable[[], Cost]:
    """A job that is a command; the memory is all that one of its processes had at most."""

    def run() -> Cost:
        started = time.perf_counter()
        child = subprocess.Popen(
            [str(word) for word in words],
            env={**os.environ, **_installed(), **(env or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert child.stderr is not None
        with _watched(child.pid) as seen:
            said = child.stderr.read()
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if status:
            raise RuntimeError(
                f"{Path(words[0]).name} ended with {child.returncode}: {_last_line(said)}"
            )
        # A process inherits the peak of the one that starts it; only a higher one is its children's.
        most = usage.ru_maxrss * 1024
        inherited = most <= kernel_says().get("VmHWM", 0)
        peak = max(seen.get("VmHWM", 0), 0 if inherited else most)
        return Cost(
            seconds, usage.ru_utime + usage.ru_stime, seen.get("rchar"), seen.get("wchar"), peak or None
        )  # fmt: skip

    return run


@contextmanager
def _watched(pid: int) -> Iterator[dict[str, int]]:
    """What the kernel says of a process, as late as it was asked before the end."""
    seen: dict[str, int] = {}
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.01):
            seen.update(kernel_says(str(pid)))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def _installed() -> dict[str, str]:
    """A start as it is once a package is installed: its bytecode is kept, whatever this shell says."""
    kept = Path(tempfile.gettempdir()) / f"benchmark-bytecode-{os.getuid()}"
    return {
        "PYTHONPATH": python_path(),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(kept),
    }


def in_child(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a fresh process, whose memory goes with it."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def on_ranks(count: int, work: Callable[..., Any], *given: Any) -> list[Any]:
    """What `work(*given)` returns on each of `count` fresh processes of one group."""
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(count) as pool:
        jobs = [(f"{folder}/store", rank, count, work, given) for rank in range(count)]
        return pool.starmap(_as_rank, jobs, chunksize=1)


def _as_rank(store: str, rank: int, count: int, work: Callable[..., Any], given: Any) -> Any:
    sys.path.insert(0, str(ROOT / "src"))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    try:
        return work(*given)
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Setting:
    """What the command line asks for, and a folder to work in."""

    rounds: int
    gigabytes: float
    root: Path


Part = tuple[Callable[[Setting], Iterator[Row]], str]
At = TypeVar("At")


def parts_asked(
    script: str,
    description: str | None,
    parts: Mapping[str, Part],
    *,
    gigabytes: float,
    rounds: int = 3,
) -> None:
    """Run the parts of a script that its command line names."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--gigabytes", type=float, default=gigabytes)
    parser.add_argument("--only", default=",".join(parts), help="the parts to run")
    parser.add_argument("--folder", default=None, help="where to work; the system's if not given")
    parser.add_argument("--out", type=Path, default=None, help="where the results go")
    given = parser.parse_args()
    print(machine(), versions(), sep="\n", flush=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        at = Setting(given.rounds, given.gigabytes, Path(scratch))
        run_parts(script, parts, given.only, at, given.out)


def run_parts(
    script: str,
    parts: Mapping[str, tuple[Callable[[At], Iterator[Row]], str]],
    asked: str,
    at: At,
    out: Path | None,
    after: Work = lambda: None,
) -> None:
    """Run the parts that are asked for, and keep what they find; one that fails does not stop the others."""
    for name in asked.split(","):
        work, about = parts[name]
        print(f"\n{script} {name}: {about}", flush=True)
        rows: list[Row] = []
        try:
            for row in work(at):
                rows.append(row)
                print(line(row), flush=True)
                keep(f"{script}-{name}", about, rows, out)  # a run may be cut short
        except Exception as error:
            traceback.print_exc()
            rows.append(Row(name, {}, [], failed=f"{type(error).__name__}: {error}"))
        keep(f"{script}-{name}", about, rows, out)
        after()


def python_path() -> str:
    """This checkout's source before all else that was given."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(ROOT / "src"), str(ROOT), *(p for p in given if p)])


def take_turns(
    jobs: Mapping[str, Callable[[], Cost]],
    at: Mapping[str, Any],
    nbytes: int | Mapping[str, int],
    *,
    rounds: int,
    seconds: float = float("inf"),
    beside: Sequence[str] = (),
    after: Work = lambda: None,
    before: Work = lambda: None,
    warm: int = 0,
) -> list[Row]:
    """Run jobs round after round, and hold each against those named in `beside`.

    A job that has taken more than `seconds` in all is not run again.  `before` and `after` are called
    around each run and not timed.  The first `warm` rounds are not counted.  A job that fails is a row
    that says so, and the others go on.  `nbytes` is what each job moves, or a job moves by its name.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in jobs}
    failed: dict[str, str] = {}
    for number in range(-warm, rounds):
        for name, job in jobs.items():
            if name in failed or sum(cost.seconds for cost in costs[name]) > seconds:
                continue
            before()
            try:
                cost = job()
                if number >= 0:
                    costs[name].append(cost)
            except ModuleNotFoundError as error:
                failed[name] = f"not installed here: {error.name}"
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # torch's errors of checkpoints are no `Exception`
                failed[name] = f"{type(error).__name__}: {_last_line(str(error).encode())}"
            after()
    found = {name: rows for name, rows in costs.items() if rows and name not in failed}
    middle = {name: statistics.median(c.seconds for c in rows) for name, rows in found.items()}
    cpu = {
        name: statistics.median(c.cpu_seconds or 0 for c in rows) for name, rows in found.items()
    }
    sizes = nbytes if isinstance(nbytes, Mapping) else dict.fromkeys(jobs, nbytes)

    def ratios(of: Mapping[str, float], name: str) -> dict[str, float]:
        return {other: of[name] / of[other] for other in beside if of.get(other)}

    return [
        Row(name, at, costs[name], sizes.get(name, 0), ratios(middle, name), ratios(cpu, name))
        if name in found
        else Row(name, at, [], failed=failed.get(name, "not run"))
        for name in jobs
    ]


def with_ratios(rows: Sequence[Row], peer: Mapping[str, str]) -> list[Row]:
    """Rows that were measured elsewhere, each with its ratio to the one that `peer` names for it."""
    middle = {row.job: row.seconds for row in rows}
    return [
        replace(row, beside={peer[row.job]: row.seconds / middle[peer[row.job]]}) for row in rows
    ]


def drop(*folders: Path) -> None:
    """Drop the files of folders from the page cache."""
    for path in (p for folder in folders for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remove(folder: Path) -> None:
    """Remove a folder, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


def line(row: Row) -> str:
    """A row as text."""
    said = row.as_json()
    at = " ".join(f"{k}={v}" for k, v in row.at.items())
    if row.failed:
        return f"{at:<28}{row.job:<34}{row.failed}"
    beside = ", ".join(f"{x:.2f} x {n}" for n, x in row.beside.items() if n != row.job)
    cells = (
        f"{said['median_s']:>9.3f} s  least {said['least_s']:<8.3f}",
        f"{said['gb_per_s']:>8.2f} GB/s" if "gb_per_s" in said else " " * 13,
        f"{said['cpu_s']:>8.2f} s CPU" if "cpu_s" in said else "",
        f"read {said['read_ratio']:.3f} x" if "read_ratio" in said else "",
        f"written {said['written_ratio']:.3f} x" if "written_ratio" in said else "",
        f"{said['peak_mib']:>5} MiB" if "peak_mib" in said else "",
    )
    return "  ".join([f"{at:<28}{row.job:<34}", *(c for c in cells if c), beside]).rstrip()


@cache
def machine() -> dict[str, Any]:
    """What a figure depends on and a reader has to know."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": CORES,
        "memory_gib": round(memory / 2**30),
        "architecture": platform.machine(),
        "processor": _processor(),
        "kernel": platform.release().split("-")[0],
        "gpu": _gpu(),
        "python": platform.python_version(),
    }


def kind_of_machine() -> str:
    """The name of the results file of machines like this one."""
    gpu = _gpu().split()
    return "-".join([f"{CORES}-cores", platform.machine(), *([gpu[-1].lower()] if gpu else [])])


@cache
def versions() -> dict[str, str]:
    """The versions of what was measured; what is absent is said to be."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed here"
    if found["intarsia"].startswith("not"):
        sys.path.insert(0, str(ROOT / "src"))
        import intarsia

        found["intarsia"] = intarsia.__version__
    return found


def keep(claim: str, about: str, rows: Sequence[Row], out: Path | None = None) -> Path:
    """Write the rows of a claim into the results of this kind of machine; other claims stay."""
    folder = out or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind_of_machine()}.json"
    held = json.loads(path.read_text()) if path.exists() else {"claims": {}}
    held["machine"], held["versions"] = machine(), versions()
    held["claims"][claim] = {
        "about": about,
        "load": round(os.getloadavg()[1], 1),
        "rows": [row.as_json() for row in rows],
    }
    held["claims"] = dict(sorted(held["claims"].items()))
    path.write_text(json.dumps(held, indent=1) + "\n")
    return path


def _short(x: float) -> float:
    """Four digits: no measurement has more."""
    return float(f"{x:.4g}")


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def kernel_says(pid: str = "self") -> dict[str, int]:
    """Bytes read and written so far, and the most memory."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                found["VmHWM"] = int(line.split()[1]) * 1024
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            key, value = line.split(":")
            found[key] = int(value)
    return found


def _forget_peak() -> None:
    """Start the kernel's record of the most memory anew, where it lets us."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _processor() -> str:
    try:
        said = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    names = [x.split(":")[1].strip() for x in said.splitlines() if x.startswith("model name")]
    return names[0] if names else ""


@cache
def _gpu() -> str:
    """The name of the first GPU; empty where there is none."""
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.splitlines()[0].strip() if said.stdout.strip() else ""

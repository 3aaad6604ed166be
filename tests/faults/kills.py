"""Conversions killed at random points and resumed: is the outcome whole, and how much was redone?

    python -m tests.faults.kills [--kills 50] [--megabytes 48] [--seed 0] [--folder DIR]

Half of the kills hit at a random call to the kernel (a write then done by half), half at a random
time.  For each: nothing that passes for a checkpoint may be there unless it is whole, the resumed
run must give the bytes of an uninterrupted one, and what it redoes is counted: bytes written by
both runs beyond those of an uninterrupted one.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import intarsia
from intarsia.errors import IntarsiaError
from tests.checkpoints import environment, files_of, leftovers, llama_config, model, write_hf
from tests.faults.dying import Counts, counts

BOUND = 0.05
HOLD_UP = 2000
JOBS = {
    "hf -> dcp": ("hf", "--to", "dcp", "--mesh", "tp=2,fsdp=3"),
    "dcp -> hf": ("dcp", "--to", "hf", "--max-shard-size", "20MB"),
    "hf -> torch_dist": ("hf", "--to", "torch_dist", "--mesh", "tp=2"),
}


@dataclass(frozen=True)
class Kill:
    """One run that was killed, and the run that took it up."""

    job: str
    how: str
    written: float
    left: str
    redone: float
    read_back: float
    same: bool

    @property
    def good(self) -> bool:
        return self.same and self.left != "HALF-VALID" and self.redone <= BOUND

    def __str__(self) -> str:
        return (
            f"{self.job:<18}{self.how:<22}{self.written:>9.1%}  {self.left:<12}"
            f"{self.redone:>8.2%}{self.read_back:>11.1%}  {'same' if self.same else 'DIFFERENT'}"
        )


HEAD = f"{'job':<18}{'killed':<22}{'written':>9}  {'left':<12}{'redone':>8}{'read back':>11}  bytes"


@dataclass(frozen=True)
class Range:
    """A folder with sources, and what uninterrupted runs make of them."""

    root: Path
    whole: dict[str, Counts]

    def run(self, job: str, *more: str, die_at: int = 0) -> subprocess.Popen[bytes]:
        """A conversion in another process."""
        src, *words = JOBS[job]
        return subprocess.Popen(
            [
                sys.executable, "-m", "tests.faults.dying", str(self.counts), str(die_at),
                str(HOLD_UP), "--quiet", "convert", str(self.root / src), str(self.out),
                *words, *more,
            ],
            env=environment(),
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def out(self) -> Path:
        return self.root / "out" / "ckpt"

    @property
    def counts(self) -> Path:
        return self.root / "counts"

    def reference(self, job: str) -> Path:
        return self.root / f"whole {job}"

    def kill(self, job: str, how: str, chance: random.Random) -> Kill | None:
        """Kill one run and resume it; None where it had ended before."""
        whole = self.whole[job]
        if how == "call":
            at = chance.randint(1, whole.calls)
            child, told = self.run(job, die_at=at), f"at call {at:,}"
            child.wait()
        else:
            child, told = self.run(job), "by another process"
            share = chance.uniform(0, 1.05) * whole.written
            while child.poll() is None and self._written() < share:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.01))
            child.kill()
            child.wait()
        if child.returncode != -9:
            self.clear()
            return None
        before = counts(self.counts)
        left = self._left(job)
        resumed = self.run(job, "--resume")
        ended = resumed.wait()
        if left == "whole":  # it was killed while it cleared up, or after
            redone, read_back = 0.0, 0.0
            same = files_of(self.out) == files_of(self.reference(job))
        else:
            after = counts(self.counts)
            redone = (before.written + after.written - whole.written) / whole.written
            read_back = (before.read + after.read - whole.read) / whole.read
            same = ended == 0 and files_of(self.out) == files_of(self.reference(job))
            same = same and not leftovers(self.out.parent)
        self.clear()
        written = before.written / whole.written
        return Kill(job, told, written, left, redone, read_back, same)

    def _written(self) -> int:
        return counts(self.counts).written if self.counts.exists() else 0

    def _left(self, job: str) -> str:
        """What a kill left for others to see: whatever opens, if only by another name, has every tensor."""
        whole = intarsia.digest(self.reference(job)).tensors
        for path in (self.out.parent / name for name in leftovers(self.out.parent)):
            other = self.root / "by another name"
            other.symlink_to(path)
            half = opens(path) or (opens(other) and intarsia.digest(other).tensors != whole)
            other.unlink()
            if half:
                return "HALF-VALID"
        if not self.out.exists():
            return "absent"
        return "whole" if files_of(self.out) == files_of(self.reference(job)) else "HALF-VALID"

    def clear(self) -> None:
        """Remove what a run made or left."""
        for path in (self.out, *self.out.parent.glob(".*")):
            subprocess.run(["rm", "-rf", str(path)], check=True)
        self.counts.unlink(missing_ok=True)


def opens(path: Path) -> bool:
    """Whether a folder passes for a checkpoint."""
    try:
        intarsia.open(path)
    except IntarsiaError:
        return False
    return True


def sources(root: Path, megabytes: int) -> Range:
    """A dense model of random bits as `hf` and as `dcp`, and each job run to its end."""
    layers = 4
    hidden = int((megabytes * 1e6 / 2 / layers / 14) ** 0.5) // 64 * 64
    config = llama_config(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        head_dim=64,
    )
    write_hf(root / "hf", model(config), config)
    intarsia.convert(root / "hf", root / "dcp", to="dcp", mesh="fsdp=2")
    (root / "out").mkdir()
    found: dict[str, Counts] = {}
    place = Range(root, found)
    for job in JOBS:
        if place.run(job).wait():
            raise SystemExit(f"{job} failed")
        found[job] = counts(place.counts)
        place.out.rename(place.reference(job))
    return place


def kills(place: Range, count: int, seed: int) -> Iterator[Kill]:
    """So many kills that hit, over all jobs and both ways in turn."""
    chance = random.Random(seed)
    hit = 0
    while hit < count:
        job = list(JOBS)[hit % len(JOBS)]
        found = place.kill(job, ("call", "time")[hit // len(JOBS) % 2], chance)
        if found is not None:
            hit += 1
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--megabytes", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        place = sources(Path(scratch), options.megabytes)
        print(HEAD)
        found = []
        for kill in kills(place, options.kills, options.seed):
            found.append(kill)
            print(kill, flush=True)
    worst = max(kill.redone for kill in found)
    good = sum(kill.good for kill in found)
    print(f"{good} of {len(found)} good; at most {worst:.2%} redone, the bar is {BOUND:.0%}")
    raise SystemExit(good != len(found))


if __name__ == "__main__":
    main()

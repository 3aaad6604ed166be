"""Three properties, over random checkpoints.

1. A random fault, or two, in a random checkpoint of a random format: everything that the diagnosis
   states is carried out on the tensors, and holds.
2. A random model that is sound and odd (pruned, upcycled, fresh, merged, …) has no fault.
3. What torch saved is what torch reads after a random road through formats and meshes.

    python -m tests.faults.properties --cases 20000 --workers 16 --minutes 9

A case is its seed: `--start SEED --cases 1 --which faulty` runs it again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import intarsia
from tests.faults.odd_models import ODD, odd_model
from tests.faults.random_checkpoints import Drawn
from tests.faults.random_faults import lost, random_fault
from tests.faults.random_roads import travel
from tests.faults.statements import untrue

AT_ONCE = 8
"""Cases that a worker is given at a time."""

LIMIT_S = 120
"""A case that takes longer is wrong."""


@dataclass(frozen=True)
class Case:
    """What was done to which model, and what was said of it that does not hold."""

    which: str
    seed: int
    kind: str
    what: str
    wrong: tuple[str, ...]


def faulty(seed: int, root: Path) -> Case:
    """One case of the first property."""
    random = Random(seed)
    left = Drawn.of(random)
    right = left.again(random)
    tensors = left.tensors
    kind, changed = random_fault(tensors, left.config, random)
    held = tensors | changed
    if any(x.dtype != tensors[n].dtype for n, x in changed.items()):
        right = right.on_hub  # Megatron's fused tensors have one element type
    if random.random() < 0.05:
        gone, right = lost(held, random), right.on_hub.whole
        kind, held = f"{kind} and lost", {n: x for n, x in held.items() if n not in gone}
    a, b = (left.write(root / "a", tensors), right.write(root / "b", held))
    before, after, damaged = tensors, held, "B"
    if random.random() < 0.3:
        a, b, before, after, damaged = b, a, after, before, "A"
    found = intarsia.verify(a, b, workers=1)
    return Case(
        "faulty",
        seed,
        kind,
        f"{kind}: {left} against {right}",
        tuple(untrue(before, after, found, left.config, damaged)),
    )


def sound(seed: int, root: Path) -> Case:
    """One case of the second property."""
    random = Random(seed)
    kind = random.choice(ODD)
    report = intarsia.verify(odd_model(kind, random, root / "odd"), workers=1)
    return Case("sound", seed, kind, kind, tuple(str(fault) for fault in report.faults))


def roads(seed: int, root: Path) -> Case:
    """One case of the third property."""
    return Case("roads", seed, *travel(seed, root))


PROPERTIES = {"faulty": faulty, "sound": sound, "roads": roads}


def run(which: str, seed: int) -> Case:
    """One case in a folder of its own; one that fails to run, or to end, is wrong."""
    root = Path(tempfile.mkdtemp(prefix="intarsia-property-"))
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_S)
    try:
        return PROPERTIES[which](seed, root)
    except Exception:
        return Case(which, seed, "raised", "raised", (traceback.format_exc(limit=-3),))
    finally:
        signal.alarm(0)
        shutil.rmtree(root, ignore_errors=True)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"a case took more than {LIMIT_S} s")


def _run_some(which: str, seeds: range) -> list[Case]:
    torch.set_num_threads(1)
    return [run(which, seed) for seed in seeds]


def cases(
    which: str, seeds: range, workers: int = 1, seconds: float = float("inf")
) -> Iterator[Case]:
    """The cases of some seeds, none left out, until time is up."""
    end = time.monotonic() + seconds
    chunks = [seeds[k : k + AT_ONCE] for k in range(0, len(seeds), AT_ONCE)]
    if workers == 1:
        for chunk in chunks:
            if time.monotonic() > end:
                return
            yield from _run_some(which, chunk)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        open_: set[Future[list[Case]]] = set()
        while open_ or chunks:
            while chunks and len(open_) < 2 * workers:
                open_.add(pool.submit(_run_some, which, chunks.pop(0)))
            done, open_ = wait(open_, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()
            if time.monotonic() > end:
                chunks = []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="of each property")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--which", choices=(*PROPERTIES, "all"), default="all")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for all of it")
    asked = parser.parse_args()
    wanted = [*PROPERTIES] if asked.which == "all" else [asked.which]
    wrong = 0
    for which in wanted:
        began, done, kinds, bad = time.monotonic(), 0, Counter[str](), Counter[str]()
        seeds = range(asked.start, asked.start + asked.cases)
        for case in cases(which, seeds, asked.workers, 60 * asked.minutes / len(wanted)):
            done += 1
            kinds.update(case.kind.split(" and ") if which == "faulty" else [case.kind])
            if case.wrong:
                bad[case.kind] += 1
                print(
                    f"{which} {case.seed} ({case.what}):", *case.wrong[:4], sep="\n    ", flush=True
                )
        wrong += sum(bad.values())
        took = time.monotonic() - began
        told = {"faulty": "untrue statements", "sound": "false alarms", "roads": "losses"}[which]
        print(
            f"{which}: {done:,} cases of {len(kinds)} kinds (seeds {asked.start} to {asked.start + done - 1}),"
            f" {sum(bad.values())} with {told} {dict(bad) or ''}, {took:.0f} s, {done / took:.1f} cases a second",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

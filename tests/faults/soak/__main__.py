"""Run the rounds, print those that fail, and a line of figures."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.faults.soak.ground import JOBS, Ground, Round
from tests.faults.soak.rounds import KINDS


@dataclass
class Soak:
    """What a number of rounds came to."""

    kinds: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    minutes: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items()))
        s = self.seen
        return (
            f"{self.kinds.total()} rounds in {self.minutes:.1f} minutes: {len(self.failures)} failed;"
            f" {s['kills']} kills, {s['stopped']} stopped by a signal, {s['refusals']} refusals,"
            f" {s['resumed']} resumed\n  {kinds}"
        )


def play(ground: Ground, number: int, seed: int, kind: str | None = None) -> tuple[str, Round, str]:
    """One round, the same for a number and a seed: its kind, what was seen, and why it failed."""
    chance = Random(f"{seed} {number}")
    weights = [weight for _, weight in KINDS.values()]
    kind = kind or chance.choices(list(KINDS), weights)[0]
    r = Round(ground, number, chance)
    try:
        KINDS[kind][0](r)
    except Exception as error:
        lines = traceback.format_exc().splitlines()[-4:] if not str(error) else [str(error)[:2000]]
        where = traceback.extract_tb(error.__traceback__)[-1]
        at = f"{Path(where.filename).name}:{where.lineno}"
        return kind, r, "\n".join([f"{type(error).__name__} at {at}", *lines, *r.log])
    return kind, r, ""


def soak(
    ground: Ground, numbers: list[int], seed: int, minutes: float, kinds: list[str] | None = None
) -> Soak:
    """Play rounds until they or the minutes are over; of `kinds` in turn, where those are given."""
    found, started = Soak(), time.monotonic()
    for number in numbers:
        found.minutes = (time.monotonic() - started) / 60
        if found.minutes > minutes:
            break
        chosen = kinds[number % len(kinds)] if kinds else None
        kind, r, failure = play(ground, number, seed, chosen)
        found.kinds[kind] += 1
        found.seen += r.seen
        if failure:
            found.failures.append(f"round {number} ({kind}, {r.job}): {failure}")
            print(found.failures[-1], flush=True)
    found.minutes = (time.monotonic() - started) / 60
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rounds", type=int, default=500)
    words.add_argument("--minutes", type=float, default=60.0)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--only", type=int, help="the number of one round")
    words.add_argument(
        "--kind", action="append", choices=list(KINDS), help="rounds of this kind alone"
    )
    words.add_argument("--job", action="append", choices=list(JOBS), help="this conversion alone")
    words.add_argument("--folder", type=Path, help="a new folder to work in, which is kept")
    asked = words.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = asked.folder or Path(scratch)
        root.mkdir(parents=True, exist_ok=True)
        ground = Ground.made(root, asked.job or list(JOBS))
        numbers = [asked.only] if asked.only is not None else list(range(asked.rounds))
        found = soak(ground, numbers, asked.seed, asked.minutes, asked.kind)
    print(found)
    sys.exit(bool(found.failures))


if __name__ == "__main__":
    main()

"""Fuzz every parser for a while: `python -m tests.fuzz --minutes 10 [--seed N] [--parser NAME]`.

What does harm is written to the corpus, where the tests find it from then on.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import time
import traceback

from intarsia.errors import IntarsiaError
from tests.fuzz.mutate import mutated
from tests.fuzz.parsers import CORPUS, PARSERS, Parser

SLOW_SECONDS = 20.0


def harm(parser: Parser, data: bytes) -> str | None:
    """What a file does to a parser beyond being refused; None where all is well."""
    started = time.process_time()
    try:
        parser.read(data)
    except IntarsiaError:
        pass
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-4:])
    taken = time.process_time() - started
    return f"{taken:.0f} s" if taken > SLOW_SECONDS else None


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.fuzz")
    words.add_argument("--minutes", type=float, default=1.0)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--parser", choices=[p.name for p in PARSERS])
    asked = words.parse_args()
    chance = random.Random(asked.seed)
    parsers = [p for p in PARSERS if asked.parser in (None, p.name)]
    kept = {p.name: p.corpus() for p in parsers}
    everything = [data for files in kept.values() for data in files]
    cases = dict.fromkeys(kept, 0)
    found: set[str] = set()
    started = time.monotonic()
    while time.monotonic() - started < 60 * asked.minutes:
        for parser in parsers:
            for _ in range(50):
                data = mutated(chance.choice(kept[parser.name]), everything, chance)
                cases[parser.name] += 1
                said = harm(parser, data)
                if said is not None and said not in found:
                    found.add(said)
                    path = CORPUS / parser.name / hashlib.sha256(data).hexdigest()[:16]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
                    print(f"{path}:\n{said}", flush=True)
    hours = (time.monotonic() - started) / 3600
    for name, count in cases.items():
        print(f"{name:<16}{count:>10,} cases")
    print(f"{sum(cases.values()):,} cases in {hours:.2f} hours, {len(found)} kinds of harm")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())

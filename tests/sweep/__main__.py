"""`python -m tests.sweep [TYPE …]`: every model type of the installed Transformers, one process each.

With `--kind` other models are made of the types, with `--variants 3` three random configurations of each are taken instead.  Results are kept as they come, so that a run that was stopped goes on where it was; `--fresh`
begins anew.  A run over all types writes `docs/reference/models.md`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from tests.sweep.page import PAGE, page
from tests.sweep.results import Results
from tests.sweep.run import sweep
from tests.sweep.types import KINDS, MORE_KINDS, all_types


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep")
    parser.add_argument("types", nargs="*", help="model types (default: all)")
    parser.add_argument("--fresh", action="store_true", help="do not go on from earlier results")
    parser.add_argument("--page", action="store_true", help="only write the page from what is kept")
    parser.add_argument(
        "--variants", type=int, default=0, help="random configurations of each type"
    )
    parser.add_argument("--kind", action="append", choices=[*KINDS, *MORE_KINDS], help="of models")
    parser.add_argument("--start", type=int, default=0, help="the first seed of those")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes at a time")
    given = parser.parse_args()
    kinds = given.kind or [*KINDS]
    chosen = [t for t in all_types(kinds) if not given.types or t.name in given.types]
    if given.variants:
        seeds = range(given.start, given.start + given.variants)
        chosen = [replace(t, seed=seed) for seed in seeds for t in chosen]
    results = Results.kept()
    if given.fresh or given.types:
        results.forget(chosen)
    if not given.page:
        sweep(chosen, results, given.jobs)
    wrong = [t for t in chosen if results.faults(t)]
    for t in wrong:
        for name, said in results.faults(t).items():
            print(f"{t}: {name}: {said}")
    print(f"{len(chosen) - len(wrong)} of {len(chosen)} right or named")
    if not given.types and not given.variants and not given.kind:
        PAGE.write_text(page(results))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.founding_cases [CASE …]`: run the cases on what is installed, and write the page.

Results are kept by version: a run with another Megatron-core fills the column of that one.
"""

from __future__ import annotations

import argparse
import sys

from tests.founding_cases.claims import CASES
from tests.founding_cases.page import PAGE, page
from tests.founding_cases.results import Results, installed
from tests.founding_cases.run import outcomes_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.founding_cases")
    letters = [case.letter for case in CASES]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(letters)}")
    parser.add_argument("--page", action="store_true", help="only write the page from what is kept")
    given = parser.parse_args()
    if unknown := {*given.cases} - {*letters}:
        parser.error(f"no case {', '.join(sorted(unknown))}")
    results, wrong = Results.kept(), 0
    for case in CASES if not given.page else ():
        if given.cases and case.letter not in given.cases:
            continue
        found = outcomes_of([*case.tests])
        results.add(case, found)
        results.keep()
        bad = sum(len(each.wrong) for each in found.values())
        held = sum(each.held for each in found.values())
        print(
            f"{case.letter} on {case.framework} {installed(case.framework)}: {held} hold, {bad} do not"
        )
        wrong += bad
    PAGE.write_text(page(results))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

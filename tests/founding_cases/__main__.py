"""`python -m tests.founding_cases [CASE …]`: run the cases on what is installed, and write the page.

Results are kept by version, as they come: a run with another Megatron-core fills the column of that
one, and `--again` runs only what does not hold yet.
"""

from __future__ import annotations

import argparse
import sys

from tests.founding_cases.claims import CASES
from tests.founding_cases.page import PAGE, page
from tests.founding_cases.results import Results, installed
from tests.founding_cases.run import by_file, outcomes_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.founding_cases")
    letters = [case.letter for case in CASES]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(letters)}")
    parser.add_argument("--again", action="store_true", help="only the tests that do not hold yet")
    parser.add_argument("--page", action="store_true", help="only write the page from what is kept")
    given = parser.parse_args()
    if unknown := {*given.cases} - {*letters}:
        parser.error(f"no case {', '.join(sorted(unknown))}")
    results, wrong = Results.kept(), 0
    for case in CASES if not given.page else ():
        if given.cases and case.letter not in given.cases:
            continue
        left = results.not_holding(case) if given.again else [*case.tests]
        for tests in by_file(left):
            results.add(case, outcomes_of(tests))
            results.keep()
        bad = len(results.not_holding(case))
        print(f"{case.letter} on {case.framework} {installed(case.framework)}: {bad} do not hold")
        wrong += bad
    PAGE.write_text(page(results))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

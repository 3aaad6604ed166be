"""The page of founding cases, from the claims and from what their tests gave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.founding_cases.claims import CASES, Case, Claim
from tests.founding_cases.results import Outcome, Results, Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "founding-cases.md"
HEAD = """# The founding cases on the real frameworks

Five pull requests of 2026 describe one missing system; [the README](../../README.md#the-founding-cases) names them. `python -m tests.founding_cases [CASE …]`
runs the tests of each claim on the frameworks that are installed and writes this page; what other versions gave
earlier stays in the columns of those versions. Numbers in the last columns count the tests, each
parameter once. Frameworks are the real ones, but for what the column *stand-in* names.
"""


def page(results: Results) -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for case in CASES for line in _case(case, results))])


def _case(case: Case, results: Results) -> Iterator[str]:
    runs = results.of(case)
    yield f"## {case.letter}. {case.title}\n"
    for version, run in runs:
        beside = ", ".join(f"{name} {number}" for name, number in run.beside.items())
        yield f"- {case.framework} {version}: with {beside}"
    columns = [f"{case.framework} {version}" for version, _ in runs] or ["outcome"]
    yield f"\n| claim | done | compared | stand-in | {' | '.join(columns)} |"
    yield f"|---|---|---|---|{'---|' * len(columns)}"
    notes: list[str] = []
    for number, claim in enumerate(case.claims, 1):
        cells = [_cell(claim, run, notes) for _, run in runs] or ["not run"]
        told = (f"{number}. {claim.says}", claim.done, claim.compared, claim.stand_in, *cells)
        yield f"| {' | '.join(told)} |"
    yield ""
    yield from (f"- {note}" for note in notes)
    if notes:
        yield ""
    yield "Tests, by claim:\n"
    for number, claim in enumerate(case.claims, 1):
        yield f"{number}. {', '.join(_link(test) for test in claim.tests)}"
    yield ""


def _cell(claim: Claim, run: Run, notes: list[str]) -> str:
    if any(test not in run.tests for test in claim.tests):
        return "not run"
    outcomes: list[Outcome] = [run.tests[test] for test in claim.tests]
    held = sum(each.held for each in outcomes)
    wrong = [said for each in outcomes for said in each.wrong]
    if not wrong:
        return f"holds ({held})"
    for test in claim.tests:
        for said in dict.fromkeys(run.tests[test].wrong):
            note = f"{_link(test)}: {said.replace('|', '/')}"
            if note not in notes:
                notes.append(note)
    return f"**{len(wrong)} of {held + len(wrong)} do not hold**"


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[`{name}`](../../{file})"

"""The page of founding cases is what its claims and their results say."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.checkpoints import ROOT
from tests.founding_cases.claims import CASES, MEGATRON
from tests.founding_cases.page import PAGE, page
from tests.founding_cases.results import Outcome, Results, Run
from tests.founding_cases.run import collected
from tests.versions import pins

AGAIN = (
    "python -m tests.founding_cases writes the page anew (--page: from the results that are kept)"
)


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(each.name for each in tree.body if isinstance(each, ast.FunctionDef))


def test_the_page_is_in_step_with_the_claims_and_their_results() -> None:
    assert page(Results.kept()) == PAGE.read_text(), AGAIN


def test_every_claim_names_tests_that_exist() -> None:
    absent = [
        test
        for case in CASES
        for test in case.tests
        if test.partition("::")[2] not in functions(test.partition("::")[0])
    ]
    assert absent == []


def test_every_claim_was_run_with_the_versions_that_are_pinned() -> None:
    results = Results.kept()
    for case in CASES:
        run = dict(results.of(case)).get(pins()[case.framework], Run())
        assert run.tests.keys() >= {*case.tests}, AGAIN
        assert not [test for test, each in run.tests.items() if each.wrong or not each.held]


def test_runs_with_two_versions_stand_side_by_side() -> None:
    """What one lane finds leaves the column of the other as it is."""
    case = CASES[0]
    good = Run({}, dict.fromkeys(case.tests, Outcome(2)))
    bad = Run({}, {test: Outcome(1, ("failure: KeyError",)) for test in case.tests})
    results = Results({"A": {"0.19.2": bad, "0.16.1": good}})
    text = page(results)
    assert f"| {MEGATRON} 0.16.1 | {MEGATRON} 0.19.2 |" in text
    assert "| holds (2) | **1 of 2 do not hold** |" in text
    assert "failure: KeyError" in text


def test_a_test_that_did_not_run_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(
        '<testsuites><testsuite><testcase classname="tests.a.test_b" name="test_c[1]"/>'
        '<testcase classname="tests.a.test_b" name="test_c[2]"><skipped message="none"/></testcase>'
        "</testsuite></testsuites>"
    )
    asked = ["tests/a/test_b.py::test_c", "tests/a/test_b.py::test_d"]
    assert collected(tmp_path / "junit.xml", asked) == {
        asked[0]: Outcome(1, ("skipped: none",)),
        asked[1]: Outcome(0, ("it did not run",)),
    }

"""`docs/performance.md` says what `benchmarks/results/` say."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import page
from benchmarks.chart import chart
from benchmarks.measure import Cost, Row, take_turns

RESULTS = sorted(page.RESULTS.glob("*.json"))


def test_the_page_and_its_figures_are_those_of_the_results() -> None:
    assert page.stale() == [], "run python -m benchmarks.page"


def test_a_result_that_changes_makes_the_page_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in RESULTS:
        held = json.loads(path.read_text())
        for claim in held["claims"].values():
            for row in claim["rows"]:
                row["median_s"] = 1234.5
        (tmp_path / path.name).write_text(json.dumps(held))
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    assert "docs/performance.md" in page.stale()


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.stem)
def test_every_claim_has_its_script_and_its_place_on_the_page(path: Path) -> None:
    claims = json.loads(path.read_text())["claims"]
    assert claims.keys() <= page.VIEWS.keys()
    assert all(find_spec(f"benchmarks.{claim.split('-')[0]}") for claim in claims)


def test_a_chart_is_xml_with_a_line_for_each_job() -> None:
    made = chart("a < b", "workers", "GB/s", {"ours": [(1, 2.0), (2, 3.5)], "copy": [(1, 900.0)]})
    lines = ElementTree.fromstring(made).findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2


def test_ratios_are_of_medians_of_jobs_that_took_turns() -> None:
    times = {"ours": iter([3.0, 9.0, 3.0]), "copy": iter([2.0, 1.0, 2.0])}
    jobs = {name: lambda found=found: Cost(next(found)) for name, found in times.items()}
    ours, copy = take_turns(jobs, {}, 6 * 10**9, rounds=3, beside=["copy"])
    assert ours.beside == {"copy": 1.5}
    assert copy.as_json() | ours.as_json() == copy.as_json() | {
        "job": "ours", "at": {}, "rounds": 3, "median_s": 3.0, "least_s": 3.0, "spread": 2.0,
        "bytes": 6 * 10**9, "gb_per_s": 2.0, "beside": {"copy": 1.5},
    }  # fmt: skip


def test_a_peer_that_is_not_installed_is_a_row_that_says_so() -> None:
    def absent() -> Cost:
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401

        return Cost(0.0)

    rows = take_turns({"copy": lambda: Cost(1.0), "peer": absent}, {}, 1, rounds=2, beside=["copy"])
    assert [row.failed for row in rows] == ["", "not installed here: no_such_package"]
    assert rows[1] == Row("peer", {}, [], failed=rows[1].failed)

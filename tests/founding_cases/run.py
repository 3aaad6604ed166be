"""Run the tests of a case in a process of their own, and collect what each gave."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as Xml
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.checkpoints import ROOT
from tests.founding_cases.results import Outcome


def by_file(tests: Iterable[str]) -> list[list[str]]:
    """Tests of one file together, since they share what takes long to make."""
    found: dict[str, list[str]] = {}
    for test in tests:
        found.setdefault(test.partition("::")[0], []).append(test)
    return [*found.values()]


def outcomes_of(tests: Sequence[str]) -> dict[str, Outcome]:
    """The outcome of each test, over all its parameters; one that did not run is wrong."""
    with tempfile.TemporaryDirectory(prefix="founding-") as folder:
        file = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-n", "0", f"--junitxml={file}"]
        command += ["-p", "no:cacheprovider", "--timeout=900", "--hypothesis-profile=same", *tests]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if not file.is_file():
            raise SystemExit(f"pytest wrote no results:\n{done.stdout[-3000:]}")
        return collected(file, tests)


def collected(file: Path, tests: Sequence[str]) -> dict[str, Outcome]:
    """Pytest's results by the tests that were asked for."""
    by_class = {name.replace(".py::", ".").replace("/", "."): name for name in tests}
    found = {name: Outcome() for name in tests}
    for case in Xml.parse(file).getroot().iter("testcase"):
        called = f"{case.get('classname')}.{case.get('name', '').partition('[')[0]}"
        name = by_class.get(called)
        if name is None:
            raise SystemExit(f"pytest ran {called}, for which nobody asked")
        found[name] = _with(found[name], case)
    return {
        name: each if each.held or each.wrong else Outcome(0, ("it did not run",))
        for name, each in found.items()
    }


def _with(before: Outcome, case: Xml.Element) -> Outcome:
    wrong = [child for child in case if child.tag in ("failure", "error", "skipped")]
    if not wrong:
        return Outcome(before.held + 1, before.wrong)
    said = f"{wrong[0].tag}: {(wrong[0].get('message') or '').strip().partition(chr(10))[0]}"[:160]
    return Outcome(before.held, (*before.wrong, said))

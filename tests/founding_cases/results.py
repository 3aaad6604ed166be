"""What the tests of the cases gave with each version of a framework, kept beside this file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.founding_cases.claims import Case
from tests.live import transformer_engine_on_cpu

KEPT = Path(__file__).with_name("results.json")


def installed(distribution: str) -> str:
    """The version of a framework; TransformerEngine's wheel has a folder of its own."""
    path = [str(transformer_engine_on_cpu.HOME)]
    for found in metadata.distributions(name=distribution, path=path):
        return found.version
    return metadata.version(distribution)


@dataclass(frozen=True)
class Outcome:
    """How often a test held, and what was said where it did not."""

    held: int = 0
    wrong: tuple[str, ...] = ()


@dataclass
class Run:
    """The outcomes of a case's tests with one version of its framework."""

    beside: dict[str, str] = field(default_factory=dict)
    tests: dict[str, Outcome] = field(default_factory=dict)


@dataclass
class Results:
    """Runs by the letter of the case and the version of its framework."""

    runs: dict[str, dict[str, Run]] = field(default_factory=dict)

    @classmethod
    def kept(cls, file: Path = KEPT) -> Results:
        if not file.is_file():
            return cls()
        return cls(
            {
                letter: {version: _run(told) for version, told in runs.items()}
                for letter, runs in json.loads(file.read_text()).items()
            }
        )

    def add(self, case: Case, tests: Mapping[str, Outcome]) -> None:
        """Put outcomes with what is installed in the place of the last ones with that version."""
        run = self.runs.setdefault(case.letter, {}).setdefault(installed(case.framework), Run())
        run.beside = {name: installed(name) for name in case.beside}
        known = {**run.tests, **tests}
        run.tests = {name: known[name] for name in case.tests if name in known}

    def not_holding(self, case: Case) -> list[str]:
        """The tests that did not run with what is installed, or did not hold."""
        run = self.runs.get(case.letter, {}).get(installed(case.framework), Run())
        good = {name for name, each in run.tests.items() if each.held and not each.wrong}
        return [name for name in case.tests if name not in good]

    def of(self, case: Case) -> list[tuple[str, Run]]:
        """The runs of a case, older versions first."""
        runs = self.runs.get(case.letter, {})
        return sorted(runs.items(), key=lambda each: [int(n) for n in each[0].split(".")[:3]])

    def keep(self, file: Path = KEPT) -> None:
        told = {
            letter: {
                version: {
                    "beside": run.beside,
                    "tests": {
                        name: {"held": x.held, "wrong": list(x.wrong)}
                        for name, x in run.tests.items()
                    },
                }
                for version, run in runs.items()
            }
            for letter, runs in sorted(self.runs.items())
        }
        file.write_text(json.dumps(told, indent=1) + "\n")


def _run(told: Any) -> Run:
    tests = {name: Outcome(x["held"], tuple(x["wrong"])) for name, x in told["tests"].items()}
    return Run(told["beside"], tests)

"""The outcomes of a sweep, kept in a file as they come."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.sweep.types import Type

Outcome = dict[str, str]


@dataclass
class Results:
    """Outcomes by type: per check `ok`, `n/a: <why>`, or what went wrong."""

    path: Path
    found: dict[Type, Outcome] = field(default_factory=dict)

    @classmethod
    def kept(cls) -> Results:
        """What earlier runs with the installed Transformers kept."""
        import transformers

        path = Path(tempfile.gettempdir()) / f"intarsia-sweep-{transformers.__version__}.jsonl"
        out = cls(path)
        for line in path.read_text().splitlines() if path.exists() else ():
            *type_, outcome = json.loads(line)
            out.found[Type(*type_)] = outcome
        return out

    def add(self, type_: Type, outcome: Outcome) -> None:
        """Keep an outcome, in the file too."""
        self.found[type_] = outcome
        with self.path.open("a") as file:
            file.write(json.dumps([type_.name, type_.kind, type_.seed, outcome]) + "\n")

    def forget(self, types: Iterable[Type]) -> None:
        """Have these types checked again."""
        for type_ in types:
            self.found.pop(type_, None)

    def faults(self, type_: Type) -> Outcome:
        """The checks of a type that went wrong for another reason than Transformers' own."""
        outcome = self.found.get(type_, {"run": "not run"})
        return {k: v for k, v in outcome.items() if v != "ok" and not v.startswith("n/a: ")}

"""The tables of fault kinds: `python -m tests.fault_kinds` rewrites them in the documents from the registry."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from intarsia.checking.kinds import KINDS

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "docs" / "reference" / "faults.md",
    ROOT / "docs" / "how-to" / "read-a-diagnosis.md",
)
TWO = "two checkpoints"
"""The table of what only a comparison shows."""

_TABLE = re.compile(r"<!-- kinds: (?P<section>[^>]+?) -->\n.*?<!-- end -->\n", re.DOTALL)


def written(page: str) -> str:
    """A page with each of its tables as the registry gives it."""
    return _TABLE.sub(
        lambda found: f"<!-- kinds: {found[1]} -->\n{_table(found[1])}<!-- end -->\n", page
    )


def sections(page: str) -> set[str]:
    """The tables that a page has."""
    return {found["section"] for found in _TABLE.finditer(page)}


def _table(section: str) -> str:
    if section == TWO:
        head = "| kind | A and B differ as if | next |"
        rows = [(k.name, k.between, k.next) for k in KINDS.values() if k.between]
    else:
        head = "| kind | meaning | next |"
        rows = [(k.name, k.row or k.means, k.next) for k in KINDS.values() if k.section == section]
    return "\n".join([head, "|---|---|---|", *_lines(rows)]) + "\n"


def _lines(rows: Iterable[tuple[str, str, str]]) -> Iterable[str]:
    return (f"| `{name}` | {meaning} | {step} |" for name, meaning, step in rows)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(written(path.read_text()))

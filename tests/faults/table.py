"""`python -m tests.faults.table`: every fault of the corpus, and what `verify A` calls it in each format."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import intarsia
from tests.faults.corpus import FAULTS, sound_checkpoint
from tests.faults.sound import FORMATS


def rows(root: Path) -> list[tuple[str, str, dict[str, str]]]:
    """A fault's name, the kind that it should be called, and the kinds found by format."""
    sound = sound_checkpoint(root)
    found = []
    for k, fault in enumerate(FAULTS):
        if fault.needs_reference:
            continue
        called = {}
        for format in fault.formats:
            folder = fault.make(sound, format, root / f"{k}-{format}")
            kinds = [f.kind for f in intarsia.verify(folder).faults]
            called[format] = ", ".join(sorted(set(kinds), key=lambda kind: kind != fault.kind))
        found.append((fault.name, fault.kind, called))
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = rows(Path(folder))
    print(f"| fault | {' | '.join(FORMATS)} |\n|---|{'---|' * len(FORMATS)}")
    for name, _, called in table:
        cells = (called.get(format, "·") or "not found" for format in FORMATS)
        print(f"| {name} | {' | '.join(cells)} |")
    cases = [(kind, told) for _, kind, called in table for told in called.values()]
    right = sum(kind in told.split(", ") for kind, told in cases)
    print(f"\n{right} of {len(cases)} found and named", file=sys.stderr)


if __name__ == "__main__":
    main()

"""The page of model types: what holds for each, and why not where it does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.sweep.checks import CHECKS, OK
from tests.sweep.results import Outcome, Results
from tests.sweep.types import KINDS, Type

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "models.md"
NOT_APPLICABLE = "n/a: "
HEAD = """# Model types

Every causal language model and every image-text model of Transformers {version}, built small and random by
`python -m tests.sweep`, which writes this page. The columns:

- *round trip*: `hf` → `dcp` on a mesh of tp=2, fsdp=3 → `hf`, bit for bit
- *verify*: no fault is found
- *load*: `intarsia.load` into the model on `meta` gives the state dict that `from_pretrained` gives
- *meta*: nothing is left on `meta`, and all buffers are those of `from_pretrained`
- *logits*: equal, bit for bit, to those of the model that `from_pretrained` loads
- *hf-module*: `--dialect hf-module` writes `state_dict()`, by name and value

✓ holds; a number is a note below the table: there Transformers itself cannot do what would be compared with, no
small model could be made, or Intarsia refuses by name.
"""


def page(results: Results) -> str:
    """The whole page."""
    import transformers

    notes: dict[str, int] = {}
    rows = [_row(t, results.found[t], notes) for t in sorted(results.found)]
    lines = [HEAD.format(version=transformers.__version__), *_summary(results), ""]
    lines += [f"| type | kind | {' | '.join(CHECKS)} |", f"|---|---|{'---|' * len(CHECKS)}", *rows]
    lines += ["", *(f"{number}. {note}" for note, number in notes.items()), ""]
    return "\n".join(lines)


def _summary(results: Results) -> Iterator[str]:
    for kind in KINDS:
        outcomes = [outcome for t, outcome in results.found.items() if t.kind == kind]
        built = [outcome for outcome in outcomes if outcome.get("build") == OK]
        held = ", ".join(
            f"{name} {sum(o.get(name) == OK for o in built)} of"
            f" {sum(not o.get(name, NOT_APPLICABLE).startswith(NOT_APPLICABLE) for o in built)}"
            for name in CHECKS
        )
        yield f"{kind.capitalize()}: {len(built)} of {len(outcomes)} types can be built here; {held}.\n"


def _row(type_: Type, outcome: Outcome, notes: dict[str, int]) -> str:
    whole = next((outcome[k] for k in ("build", "save", "run") if outcome.get(k, OK) != OK), "")
    cells = [_cell(outcome.get(name, whole or "not run"), notes) for name in CHECKS]
    return f"| {type_.name} | {type_.kind} | {' | '.join(cells)} |"


def _cell(said: str, notes: dict[str, int]) -> str:
    if said == OK:
        return "✓"
    note = _cause(said.removeprefix(NOT_APPLICABLE))
    number = notes.setdefault(note, len(notes) + 1)
    return str(number) if said.startswith(NOT_APPLICABLE) else f"**{number}**"


def _cause(said: str) -> str:
    """An outcome in one line that does not change from run to run."""
    said = re.sub(r"/\S*sweep-\w+/", "", said)
    missing = re.search(r"requires the (\w+) library|No module named '(\w+)'", said)
    if missing:
        return f"needs a library that is not installed here ({missing[1] or missing[2]})"
    return " ".join(said.split())[:220].replace("|", "\\|")

"""`python -m tests.faults.table`: what `verify` finds and names in the corpus, beside other loaders.

Writes `docs/reference/detection.md`; the faults are made anew, so the figures are those of today.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import intarsia
from tests.faults.against import AGAINST
from tests.faults.corpus import FAULTS, sound_checkpoint
from tests.faults.peers import SILENT, peers_say
from tests.faults.reference import MODELS, weights, write

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "detection.md"
PEERS = ("torch DCP", "safetensors", "Transformers")


@dataclass(frozen=True)
class Case:
    """One fault in one format: what it should be called, what it was, what others say of it."""

    fault: str
    kind: str
    format: str
    called: tuple[str, ...]
    peers: dict[str, str]

    @property
    def named(self) -> bool:
        return self.kind in self.called


def alone(root: Path) -> Iterator[Case]:
    """The faults that one checkpoint shows by itself."""
    sound = sound_checkpoint(root)
    for k, fault in enumerate(FAULTS):
        for format in fault.formats:
            folder = fault.make(sound, format, root / f"{k}-{format}")
            called = tuple(dict.fromkeys(f.kind for f in intarsia.verify(folder).faults))
            yield Case(fault.name, fault.kind, format, called, peers_say(folder, format))
            shutil.rmtree(folder, ignore_errors=True)


def against(root: Path) -> Iterator[Case]:
    """The faults that show beside a reference."""
    made: dict[tuple[str, str], Path] = {}
    for k, fault in enumerate(AGAINST):
        for format in fault.formats:
            key = (fault.model, format)
            if key not in made:
                model = MODELS[fault.model]
                made[key] = write(
                    root / f"sound-{fault.model}-{format}", weights(model), model, format
                )
            folder = fault.make(made[key], root / f"{k}-{format}", seed=1)
            found = intarsia.verify(made[key], folder)
            called = tuple(dict.fromkeys(f.kind for f in found.faults)) or (
                () if found else ("unexplained",)
            )
            yield Case(fault.name, fault.kind, format, called, peers_say(folder, format))
            shutil.rmtree(folder, ignore_errors=True)


def table(cases: list[Case]) -> Iterator[str]:
    """A line for each fault, its formats together."""
    yield f"| fault | formats | `verify` calls it | {' | '.join(PEERS)} |"
    yield f"|---|---|---|{'---|' * len(PEERS)}"
    for fault in dict.fromkeys(case.fault for case in cases):
        held = [case for case in cases if case.fault == fault]
        called = dict.fromkeys(case.kind if case.named else ", ".join(case.called) for case in held)
        says = [_together([c.peers[peer] for c in held if peer in c.peers]) for peer in PEERS]
        names = ", ".join(f"`{x}`" if x else "not found" for x in called)
        yield f"| {fault} | {', '.join(c.format for c in held)} | {names} | {' | '.join(says)} |"


def _together(said: list[str]) -> str:
    if not said:
        return "·"
    counts = {word: said.count(word) for word in dict.fromkeys(said)}
    return ", ".join(
        w if n == len(said) else f"{w} ({n} of {len(said)})" for w, n in counts.items()
    )


def summary(cases: list[Case]) -> Iterator[str]:
    """How many were found and named, and what others passed over."""
    found = sum(bool(case.called) for case in cases)
    named = sum(case.named for case in cases)
    kinds = len({case.kind for case in cases})
    yield (
        f"{len(cases)} faulty checkpoints, {len({c.fault for c in cases})} faults of {kinds} kinds:"
        f" {found} found ({found / len(cases):.1%}), {named} named ({named / len(cases):.1%})."
    )
    for peer in PEERS:
        said = [case.peers[peer] for case in cases if peer in case.peers]
        yield f"{peer} loads {said.count(SILENT)} of {len(said)} without a word."


def main() -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        first, second = list(alone(Path(one))), list(against(Path(two)))
    lines = [
        "# What `verify` finds and names",
        "",
        "Made by `python -m tests.faults.table`. Beside it: what torch's DCP, safetensors and Transformers say when they load the same",
        "files (*silent*: they load; *warns*: a printed report; *refuses*: an error).",
        "",
        *summary([*first, *second]),
        "",
        "## One checkpoint alone: `verify A`",
        "",
        *table(first),
        "",
        "## Beside a reference: `verify A B`",
        "",
        *table(second),
        "",
    ]
    PAGE.write_text("\n".join(lines))
    print("\n".join(summary([*first, *second])))
    lost = [c for c in [*first, *second] if not c.named]
    for case in lost:
        print(f"{case.fault} ({case.format}): {case.called or 'not found'}", file=sys.stderr)


if __name__ == "__main__":
    main()

"""`intarsia diff`: how much each tensor changed between two checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from intarsia.cli import options
from intarsia.cli.output import answer, print_table, progress, say


def run(
    a: options.Path,
    b: Annotated[str, options.Argument("The later checkpoint.")],
    config: options.Config = None,
    section: options.Section = None,
    memory: options.Memory = None,
    workers: options.Workers = None,
    most: Annotated[
        int, options.Option("--most", "How many tensors to show; 0 for all.", least=0)
    ] = 40,
) -> None:
    """Say how far each tensor moved from A to B, the furthest first.

    Tensors of unlike shapes, and those that only one side has, are listed. However much moved, the
    status is 0: `verify` is the command that judges.
    """
    from intarsia import api

    with progress("comparing") as advance:
        found = api.diff(
            a, b, config=config, section=section, memory=memory, workers=workers, progress=advance
        )

    def text() -> None:
        rows = [(c.tensor, c.elements, c.max_abs, c.rms, c.relative, c.cosine) for c in found]
        print_table("", ("tensor", "elements", "max abs", "rms", "relative", "cosine"), rows, most)
        shown = [str(x) for x in found.unlike]
        _print_names("unlike shapes", shown, most)
        _print_names("only in A", found.only_in_a, most)
        _print_names("only in B", found.only_in_b, most)
        odd = [
            f"{c.tensor} ({c.not_finite[0]:,} in A, {c.not_finite[1]:,} in B)"
            for c in found
            if any(c.not_finite)
        ]
        _print_names("NaN or infinite", odd, most)
        for note in found.notes:
            say(f"note: {note}")

    answer({"a": a, "b": b} | found.as_json(), text, is_all=True)


def _print_names(what: str, names: Sequence[str], most: int) -> None:
    for name in names[:most] if most else names:
        say(f"{what}: {name}")
    if most and len(names) > most:
        say(f"{what}: … and {len(names) - most:,} more")

"""`intarsia diff`: how much each tensor changed between two checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from intarsia.cli import options
from intarsia.cli.output import answer, progress, table

NAME = "diff"


def run(
    a: options.Path,
    b: Annotated[str, typer.Argument(help="The later checkpoint.")],
    config: options.Config = None,
    memory: options.Memory = None,
    workers: options.Workers = None,
    most: Annotated[int, typer.Option("--most", help="How many tensors to show; 0 for all.")] = 40,
) -> None:
    """Say how far each tensor moved from A to B, the furthest first."""
    from intarsia import api

    with progress("comparing") as advance:
        found = api.diff(a, b, config=config, memory=memory, workers=workers, progress=advance)
    found.sort(key=lambda c: (-c.relative, c.tensor))

    def text() -> None:
        rows = [(c.tensor, c.elements, c.max_abs, c.rms, c.relative, c.cosine) for c in found]
        table("", ("tensor", "elements", "max abs", "rms", "relative", "cosine"), rows, most)

    answer({"a": a, "b": b, "tensors": [c.as_json() for c in found]}, text)

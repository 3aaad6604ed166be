"""`intarsia verify`: are two checkpoints the same weights?"""

from __future__ import annotations

from typing import Annotated

import typer

from intarsia.cli import options
from intarsia.cli.output import answer, progress, say, table

NAME = "verify"


def run(
    a: options.Path,
    b: Annotated[str, typer.Argument(help="The checkpoint to hold against it.")],
    config: options.Config = None,
    memory: options.Memory = None,
    workers: options.Workers = None,
) -> None:
    """Compare every logical tensor of A and B bit by bit, whatever their formats and layouts."""
    from intarsia import api

    with progress("verifying") as advance:
        found = api.verify(a, b, config=config, memory=memory, workers=workers, progress=advance)

    def text() -> None:
        if found.equal:
            say(f"equal: {found.compared:,} tensors, {found.elements:,} elements, bit by bit")
        else:
            rows = [
                (d.tensor, d.elements, str(list(d.first)), d.max_abs, d.diagnosis)
                for d in found.different
            ]
            if rows:
                columns = ("tensor", "elements", "first", "max abs", "diagnosis")
                table(f"different: {len(rows)} of {found.compared} tensors", columns, rows, most=40)
            for side, names in (("A", found.only_in_a), ("B", found.only_in_b)):
                for name in names[:20]:
                    say(f"only in {side}: {name}")
                if len(names) > 20:
                    say(f"only in {side}: … and {len(names) - 20} more")
        for note in found.notes:
            say(f"note: {note}")

    answer(found.as_json(), text)
    raise typer.Exit(0 if found.equal else 1)

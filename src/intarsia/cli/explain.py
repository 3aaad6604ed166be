"""`intarsia explain`: where the elements of a tensor lie."""

from __future__ import annotations

from typing import Annotated

from intarsia.cli import options
from intarsia.cli.output import answer, print_table, say, width


def run(
    path: options.Path,
    tensor: Annotated[str, options.Argument("A tensor: its logical name, or its name on disk.")],
    mesh: options.Mesh = None,
    config: options.Config = None,
    section: options.Section = None,
) -> None:
    """Draw where the elements of a tensor lie.

    Shown are stored tensors, files, byte ranges and, on a mesh that is given, ranks.
    """
    from intarsia.opened.explanation import explain

    found = explain(path, tensor, mesh, config, section)

    def text() -> None:
        say(found.drawing(width(110)))
        heads = ("file", "bytes from", "to", "chunk", "elements", "pieces", "holds")
        rows = [
            (p.file, p.start_bytes, p.end_bytes, p.chunk, p.elements, p.count, p.holds)
            for p in found.pieces
        ]
        print_table("on disk", heads, rows, most=64)
        if found.ranks:
            on_ranks = [(r.rank, r.place, r.stored, r.box) for r in found.ranks]
            title = f"on {found.mesh} ({found.mesh.size} ranks)"
            print_table(title, ("rank", "place", "stored", "box"), on_ranks, most=64)

    answer(found.as_json(), text, is_all=True)

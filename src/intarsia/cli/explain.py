"""`intarsia explain`: where the elements of a tensor lie."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli import options
from intarsia.cli.output import answer, say, table

if TYPE_CHECKING:
    from intarsia.mesh import Mesh
    from intarsia.planning.manifest import Manifest, Stored

NAME = "explain"


def run(
    path: options.Path,
    tensor: Annotated[str, typer.Argument(help="A tensor: its logical name, or its name on disk.")],
    mesh: options.Mesh = "",
    config: options.Config = None,
    section: options.Section = None,
) -> None:
    """Draw where the elements of a tensor lie: stored tensors, files, byte ranges, ranks."""
    from intarsia.formats import read_manifest
    from intarsia.mesh import Mesh
    from intarsia.planning.proof import prover_of

    found = read_manifest(path, config, section=section)
    held = stored_of(found, tensor)
    for s in held:
        prover_of(found).stored(s)
    where = Mesh.parse(mesh)
    pieces = [row for s in held for row in chunk_rows(found, s, tensor)]
    ranks = rank_rows(held, where) if mesh else []
    document: dict[str, Any] = {
        "tensor": tensor,
        "format": found.format,
        "family": found.family,
        "stored": [
            {"name": s.key or s.name, "dtype": s.dtype.name, "shape": list(s.shape)} for s in held
        ],
        "pieces": pieces,
        "mesh": str(where),
        "ranks": ranks,
    }

    def text() -> None:
        show_stored(found, held, tensor)
        columns = ("file", "start_bytes", "end_bytes", "chunk", "elements", "count", "holds")
        heads = ("file", "bytes from", "to", "chunk", "elements", "pieces", "holds")
        table("on disk", heads, [tuple(row[c] for c in columns) for row in pieces], most=64)
        if mesh:
            on_ranks = ("rank", "place", "stored", "box")
            rows = [tuple(row[c] for c in on_ranks) for row in ranks]
            table(f"on {where} ({where.size} ranks)", on_ranks, rows, most=64)

    answer(document, text)


def show_stored(manifest: Manifest, held: list[Stored], tensor: str) -> None:
    """Draw each stored tensor that holds a tensor."""
    from intarsia.layout import draw

    if tensor in manifest.logical:
        x = manifest.logical[tensor]
        say(f"{tensor}: {x.dtype} {list(x.shape)}, {x.size:,} elements")
    shapes = {name: x.shape for name, x in manifest.logical.items()}
    for s in held:
        part = f", its part {s.name}" if s.key not in ("", s.name) else ""
        say(f"\nstored as {s.key or s.name}{part}, {s.dtype} {list(s.shape)}")
        say(draw(s.layout, shapes, width=110))


def rank_rows(held: list[Stored], mesh: Mesh) -> list[dict[str, Any]]:
    """A row for each box that a rank of a mesh holds of stored tensors."""
    return [
        {"rank": rank, "place": str(mesh.place(rank)), "stored": s.key or s.name, "box": str(box)}
        for s in held
        for rank in range(mesh.size)
        if (box := mesh.box(s.shape, s.rule, rank)) is not None and box.size
    ]


def stored_of(manifest: Manifest, tensor: str) -> list[Stored]:
    """The stored tensors that hold a tensor, by its logical name or its name on disk."""
    held = list(manifest.sources.get(tensor, ()))
    held = held or [s for s in manifest.stored.values() if tensor in (s.key, s.name)]
    if held:
        return held
    from intarsia.errors import UsageError

    near = get_close_matches(tensor, [*manifest.logical, *manifest.stored], 3, 0.4)
    hint = (
        f"did you mean {', '.join(dict.fromkeys(near))}?"
        if near
        else "intarsia inspect --tensors lists them"
    )
    raise UsageError(f"{tensor!r} is not in {manifest.path}", hint=hint)


def chunk_rows(manifest: Manifest, s: Stored, tensor: str) -> list[dict[str, Any]]:
    """A row for each chunk of a stored tensor that holds elements of `tensor`."""
    from intarsia.layout import describe_piece

    rows = []
    for chunk in s.chunks:
        layout = s.layout.box(chunk.box.offsets, chunk.box.shape)
        own = tensor in (s.key, s.name) and tensor not in manifest.logical
        pieces = [p for p in layout.pieces if own or p.tensor == tensor]
        if not pieces and s.layout.size:
            continue
        shapes = manifest.logical
        holds = "; ".join(
            describe_piece(p, shapes[p.tensor].shape if p.tensor in shapes else None)
            for p in pieces[:3]
        )
        rows.append(
            {
                "stored": s.key or s.name,
                "file": chunk.file,
                "start_bytes": chunk.start_bytes,
                "end_bytes": chunk.start_bytes + chunk.length_bytes,
                "chunk": str(chunk.box),
                "elements": sum(p.size for p in pieces),
                "count": len(pieces),
                "holds": holds + ("; …" if len(pieces) > 3 else ""),
                "pieces": [
                    {
                        "tensor": p.tensor,
                        "at": p.at,
                        "to": p.to,
                        "loops": [[loop.n, loop.at, loop.to] for loop in p.loops],
                    }
                    for p in pieces[:1000]
                ],
            }
        )
    return rows

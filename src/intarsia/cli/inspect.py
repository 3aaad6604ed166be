"""`intarsia inspect`: what a checkpoint is, from its headers alone."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from intarsia.cli import options
from intarsia.cli.output import OUTPUT, answer, facts, table
from intarsia.quantity import human

NAME = "inspect"


def run(
    path: options.Path,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    config: options.Config = None,
    html: options.Html = None,
) -> None:
    """Say what a checkpoint is and whether it is complete; only headers are read."""
    from intarsia.formats import read_manifest

    if html is not None:
        from intarsia.report.write import check_page

        check_page(html)
    found = read_manifest(path, config)
    if html is not None and OUTPUT.speaks:
        from intarsia.report.story import of_inspection
        from intarsia.report.write import write_page

        write_page(html, of_inspection(found))
    dtypes = Counter(s.dtype.name for s in found.stored.values())
    document: dict[str, Any] = {
        "path": found.path,
        "format": found.format,
        "family": found.family,
        "tensors": len(found.stored),
        "parameters": found.parameters,
        "bytes": found.nbytes,
        "dtypes": dict(dtypes),
        "files": dict(found.files),
        "entries": len(found.entries),
        "complete": not found.absent,
        "problems": list(found.problems),
        "notes": list(found.notes),
    }
    rows = [
        (
            s.key or s.name,
            str(s.dtype),
            "x".join(map(str, s.shape)) or "scalar",
            len(s.chunks),
            s.nbytes,
        )
        for s in found.stored.values()
    ]
    if tensors:
        document["tensor_list"] = [
            {"name": n, "dtype": d, "shape": list(s.shape), "chunks": c, "bytes": b}
            for (n, d, _, c, b), s in zip(rows, found.stored.values(), strict=True)
        ]

    def text() -> None:
        facts(
            [
                ("path", found.path),
                ("format", found.format),
                ("family", found.family or "unknown"),
                ("tensors", len(found.stored)),
                ("parameters", found.parameters),
                ("bytes", f"{human(found.nbytes)} in {len(found.files)} file(s)"),
                ("dtypes", ", ".join(f"{k} x {v}" for k, v in dtypes.most_common())),
                ("entries", len(found.entries)),
                ("complete", not found.absent),
                *(("problem", p) for p in found.problems[:20]),
                *(("note", n) for n in found.notes),
            ]
        )
        if tensors:
            table("", ("tensor", "dtype", "shape", "chunks", "bytes"), rows)

    answer(document, text)

"""`intarsia inspect`: what a checkpoint is, from its headers alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli import options
from intarsia.cli.output import OUTPUT, answer, facts, table
from intarsia.planning.inventory import lines
from intarsia.quantity import human

if TYPE_CHECKING:
    from intarsia.planning.inventory import Item
    from intarsia.planning.manifest import Manifest

NAME = "inspect"


def run(
    path: options.Path,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    config: options.Config = None,
    section: options.Section = None,
    html: options.Html = None,
) -> None:
    """Say what a checkpoint is and whether it is complete; only headers are read."""
    from intarsia.formats import read_manifest

    if html is not None:
        from intarsia.report.write import check_page

        check_page(html)
    found = read_manifest(path, config, section=section)
    if html is not None and OUTPUT.speaks:
        from intarsia.report.story import of_inspection
        from intarsia.report.write import write_page

        write_page(html, of_inspection(found))
    answer(as_json(found, tensors=tensors), lambda: show(found, tensors=tensors))


def as_json(found: Manifest, *, tensors: bool) -> dict[str, Any]:
    """A checkpoint's headers as one document."""
    document: dict[str, Any] = {
        "path": found.path,
        "format": found.format,
        "family": found.family,
        "tensors": len(found.stored),
        "parameters": found.parameters,
        "bytes": found.nbytes,
        "dtypes": dict(dtypes_of(found)),
        "files": dict(found.files),
        "entries": len(found.entries),
        "complete": is_complete(found),
        "problems": problems_of(found),
        "inventory": [item.as_json() for item in found.inventory],
        "quantised": quantised_as_json(found),
        "notes": list(found.notes),
    }
    if tensors:
        document["tensor_list"] = [
            {
                "name": s.key or s.name,
                "dtype": str(s.dtype),
                "shape": list(s.shape),
                "chunks": len(s.chunks),
                "bytes": s.nbytes,
            }
            for s in found.stored.values()
        ]
    return document


def show(found: Manifest, *, tensors: bool) -> None:
    """Print what a checkpoint is, for people."""
    facts(
        [
            ("path", found.path),
            ("format", found.format),
            ("family", found.family or "unknown"),
            ("tensors", len(found.stored)),
            ("parameters", found.parameters),
            ("bytes", f"{human(found.nbytes)} in {len(found.files)} file(s)"),
            ("dtypes", ", ".join(f"{k} x {v}" for k, v in dtypes_of(found).most_common())),
            ("entries", len(found.entries)),
            ("complete", is_complete(found)),
            *(("problem", p) for p in problems_of(found)[:20]),
            *(("unread", text) for text in lines(found.inventory)),
            *(("section", f"{i.name}: {i.role}, {human(i.nbytes)}") for i in _sections(found)),
            *(("note", n) for n in found.notes),
        ]
    )
    if tensors:
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
        table("", ("tensor", "dtype", "shape", "chunks", "bytes"), rows)


def _sections(found: Manifest) -> list[Item]:
    from intarsia.planning.inventory import Fate

    return [i for i in found.inventory if i.kind == "section" and i.fate is Fate.READ and i.nbytes]


def is_complete(found: Manifest) -> bool:
    """Whether every tensor is there, and every scale that a quantised one needs."""
    return not found.absent and not found.quantised.faults


def problems_of(found: Manifest) -> list[str]:
    """What headers show to be wrong."""
    return [*found.problems, *(fault.text for fault in found.quantised.faults)]


def quantised_as_json(found: Manifest) -> dict[str, Any] | None:
    """How weights are quantised, and how many are."""
    if not found.quantised:
        return None
    return {"scheme": str(found.quantised), "weights": len(found.quantised.weights)}


def dtypes_of(found: Manifest) -> Counter[str]:
    """How many stored tensors have each element type."""
    return Counter(s.dtype.name for s in found.stored.values())

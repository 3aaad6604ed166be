"""The key under which a state dict keeps its optimizer: ours, or its own where all of it is asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from intarsia.errors import FormatError
from intarsia.format.dcp.metadata import Metadata
from intarsia.format.naming.section import TOP
from intarsia.planning.inventory import Fate, Role
from intarsia.planning.manifest import Manifest
from intarsia.state.names import ROOT


def optimizer_key(src: Manifest | None) -> str:
    """What the names of optimizer state begin with in what is written; `--section .` keeps the source's."""
    if src is None or TOP not in src.section:
        return ROOT
    read = (
        item for item in src.inventory if item.role is Role.OPTIMIZER and item.fate is Fate.READ
    )
    name = next((item.name for item in read if item.kind == "section"), None)
    return ROOT if name is None else "" if name == TOP else f"{name}."


def with_optimizer_at(key: str, metadata: Metadata) -> Metadata:
    """Metadata in which the optimizer is under another key."""
    if key == ROOT:
        return metadata

    def moved(name: str) -> str:
        return key + name.removeprefix(ROOT) if name.startswith(ROOT) else name

    names = Counter(map(moved, (*metadata.tensors, *metadata.objects)))
    if twice := [name for name, count in names.items() if count > 1]:
        raise FormatError(
            f"`{twice[0]}` would be a name of the optimizer and of something else",
            hint="leave out `--section .`: the optimizer is then written under a name of its own",
        )
    return Metadata(
        {moved(n): replace(record, name=moved(n)) for n, record in metadata.tensors.items()},
        {moved(n): replace(entry, name=moved(n)) for n, entry in metadata.objects.items()},
        {moved(n): (moved(n),) for n in metadata.paths},
        metadata.extra,
    )

"""What a checkpoint is, from its headers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from intarsia.document import Document, fields_of, in_json
from intarsia.format.registry import read_manifest
from intarsia.frozen import frozen, frozen_open
from intarsia.mesh import Shape
from intarsia.opened.lacking import lacking
from intarsia.opened.parameters import parameters_of
from intarsia.options import ConfigLike, PathLike, SectionLike
from intarsia.planning.inventory import Fate, InventoryItem, lines
from intarsia.planning.manifest import Manifest
from intarsia.quantity import human


@frozen
class StoredTensor(Document):
    """A tensor as it is stored, in as many chunks as its file or files hold of it."""

    name: str
    dtype: str
    shape: Shape
    chunks: int
    bytes: int


@frozen
class QuantisedKind(Document):
    """How weights are quantised, and how many are."""

    scheme: str
    weights: int


@frozen_open
class Inspection(Document):
    """What the headers of a checkpoint say; its text is what `intarsia inspect` prints.

    `parameters` are the model's: of quantised weights those that they stand for, and no scales.
    `complete` says whether every tensor is there with all of its elements, and every scale that a quantised one needs.
    """

    path: str
    format: str
    family: str | None
    tensors: int
    parameters: int
    bytes: int
    dtypes: Mapping[str, int]
    files: Mapping[str, int]
    entries: int
    complete: bool
    problems: tuple[str, ...]
    inventory: tuple[InventoryItem, ...]
    quantised: QuantisedKind | None
    notes: tuple[str, ...]
    manifest: Manifest = field(repr=False, compare=False)

    @property
    def tensor_list(self) -> tuple[StoredTensor, ...]:
        """Every stored tensor."""
        return tuple(
            StoredTensor(s.on_disk, s.dtype.name, s.shape, len(s.chunks), s.nbytes)
            for s in self.manifest.stored.values()
        )

    def as_json(self, *, tensors: bool = False) -> dict[str, Any]:
        """One document; with `tensors`, every tensor is listed."""
        found = fields_of(self, but=("manifest",))
        return found | {"tensor_list": in_json(self.tensor_list)} if tensors else found

    def __str__(self) -> str:
        kinds = sorted(self.dtypes.items(), key=lambda kind: -kind[1])
        files = "1 file" if len(self.files) == 1 else f"{len(self.files):,} files"
        rows = [
            ("path", self.path),
            ("format", self.format),
            ("family", self.family or "unknown"),
            ("tensors", f"{self.tensors:,}"),
            ("parameters", f"{parameters_of(self.manifest)}"),
            ("bytes", f"{human(self.bytes)} in {files}"),
            ("dtypes", ", ".join(f"{name} x {count}" for name, count in kinds)),
            ("entries", f"{self.entries:,}"),
            ("complete", "yes" if self.complete else "no"),
        ]
        rows += [("problem", text) for text in self.problems[:20]]
        rows += [("unread", text) for text in lines(self.inventory)]
        rows += [
            ("section", f"{i.name}: {i.role}, {human(i.nbytes)}")
            for i in self.inventory
            if i.kind == "section" and i.fate is Fate.READ and i.nbytes
        ]
        rows += [("note", text) for text in self.notes]
        return "\n".join(f"{name:<12}{text}" for name, text in rows)


def inspect(path: PathLike, config: ConfigLike = None, section: SectionLike = None) -> Inspection:
    """What a checkpoint is and whether it is complete; only its headers are read.

    `section` names the model where a checkpoint holds several.
    """
    found = read_manifest(path, config, section=section)
    q, counted = found.quantised, parameters_of(found)
    wrong = [*lacking(found)]
    return Inspection(
        path=found.path,
        format=found.format,
        family=found.family,
        tensors=len(found.stored),
        parameters=counted.count,
        bytes=found.nbytes,
        dtypes=dict(Counter(s.dtype.name for s in found.stored.values())),
        files=dict(found.files),
        entries=len(found.entries),
        complete=not found.absent and not wrong,
        problems=(*map(str, found.problems), *wrong),
        inventory=found.inventory,
        quantised=QuantisedKind(str(q), len(q.weights)) if q else None,
        notes=found.notes,
        manifest=found,
    )

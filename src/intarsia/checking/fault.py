"""A fault: something that a checkpoint should not have, or that two checkpoints do not share."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import replace
from typing import Any

from intarsia.checking.kinds import KINDS
from intarsia.document import Document, fields_of
from intarsia.errors import few
from intarsia.format.complaint import Complaint
from intarsia.frozen import frozen
from intarsia.planning.manifest import Manifest


@frozen
class Fault(Document):
    """What is wrong, with which tensors, and where: a file and byte, or rows and columns.

    `hint` is what the error behind it advises, if one is behind it; `files` are those that one accident
    may have damaged, where the kind is of that sort.
    """

    kind: str
    tensors: tuple[str, ...]
    where: str
    text: str
    elements: int = 0
    hint: str = ""
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise KeyError(f"there is no fault kind {self.kind!r}: see checking/kinds")

    @property
    def means(self) -> str:
        """What a fault of its kind is."""
        return KINDS[self.kind].means

    @property
    def next(self) -> str:
        """What to do about it."""
        return self.hint or KINDS[self.kind].next

    def as_json(self) -> dict[str, Any]:
        return fields_of(self, but=("hint",)) | {"means": self.means, "next": self.next}

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f" - at {self.where}" if self.where else "")


_IN_ONE_FILE = (
    "bytes-overlap", "checksum-wrong", "chunk-mismatch", "entry-damaged", "index-wrong", "malformed",
    "unreadable",
)  # fmt: skip
"""Kinds that one accident gives to everything in a file."""

_EVERYWHERE = (
    "copies-differ", "dtype-implausible", "master-differs", "negative-variance", "not-finite", "value-implausible",
)  # fmt: skip
"""Kinds that a rank of another step, a run that diverged, a swap of moments or a wrong type gives to all that it holds."""

_EACH = 3
"""So many of a kind in a file are listed one by one."""


def gathered(faults: Iterable[Fault], manifest: Manifest | None = None) -> tuple[Fault, ...]:
    """Each fault once; those that damaged one file, and what went wrong everywhere, as one.

    What is wrong with tensors is so in the files of the `manifest` that hold them.
    """
    groups: dict[object, list[Fault]] = {}
    for each in dict.fromkeys(faults):
        fault = each
        if manifest is not None and not each.files and each.kind not in _IN_ONE_FILE:
            held = (file for file in manifest.files_of(each.tensors) if file in manifest.files)
            fault = replace(each, files=tuple(held))
        key: object = fault
        if fault.kind in _IN_ONE_FILE:
            key = fault.kind, fault.files or (fault.where,)
        elif fault.kind in _EVERYWHERE:
            key = fault.kind
        groups.setdefault(key, []).append(fault)
    return tuple(x for group in groups.values() for x in _as_one(group))


def fault_of(found: Complaint) -> Fault:
    """A complaint of a format, as a fault."""
    error = found.error
    where = ", ".join(found.files)
    return Fault(error.kind, found.names, where, error.brief, hint=error.hint or "")


def with_more(text: str, alike: Sized) -> str:
    """What is said of the first of several, and how many more there are."""
    return f"{text}; and {len(alike) - 1:,} more like it" if len(alike) > 1 else text


def _as_one(group: list[Fault]) -> list[Fault]:
    if group[0].kind == "bytes-overlap":
        # Found in the headers, and again among the tensors, which it names there.
        group = [fault for fault in group if fault.tensors] or group
    if len(group) <= _EACH:
        return group
    first = group[0]
    files = tuple(dict.fromkeys(file for fault in group for file in fault.files))
    where = few(sorted(files), 4) or first.where
    at = f" in {where}" if first.kind in _IN_ONE_FILE else ""
    names = tuple(dict.fromkeys(name for fault in group for name in fault.tensors))
    text = f"{with_more(first.text, group)}{at}"
    elements = sum(fault.elements for fault in group)
    return [Fault(first.kind, names, where, text, elements, first.hint, files)]

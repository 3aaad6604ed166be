"""Every part of a source and what becomes of it: nothing is passed over in silence.

A part is a file of the folder or a section of its state dict.  Its role comes from content that
only one kind has, or from the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from intarsia.document import Document, fields_of
from intarsia.errors import few
from intarsia.frozen import frozen

_SHOWN = 8


class Role(StrEnum):
    """What a part of a checkpoint is."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    OTHER_MODEL = "other model"
    TRAINING = "training state"
    SIDE = "side file"
    UNKNOWN = "unknown"


class Fate(StrEnum):
    """What becomes of a part: its content is read, its file is copied or made anew, or none of these."""

    READ = "read"
    COPIED = "copied"
    MADE_ANEW = "made anew"
    LEFT_OUT = "left out"


@frozen
class InventoryItem(Document):
    """One file, folder, link to nothing or section of a source; `why` is the reason where it is left out."""

    kind: str
    name: str
    role: Role
    fate: Fate
    why: str = ""
    nbytes: int = 0

    def as_json(self) -> dict[str, Any]:
        return fields_of(self, but=("nbytes",)) | {"bytes": self.nbytes}


@frozen
class Reason:
    """Why a tensor is not taken; `lost` where nothing else in the destination says the same."""

    text: str
    lost: bool = False


@frozen
class LeftOut(Document):
    """A source tensor that the destination does not take, and why."""

    tensor: str
    elements: int
    why: str
    lost: bool = False


def items_left_out(items: Iterable[InventoryItem]) -> list[InventoryItem]:
    """The parts that the destination does not get."""
    return [item for item in items if item.fate is Fate.LEFT_OUT]


def lines(items: Iterable[InventoryItem]) -> list[str]:
    """What is left out, for people: one line for all parts that are left out for the same reason."""
    groups: dict[tuple[str, Role, str], list[str]] = {}
    for item in items_left_out(items):
        groups.setdefault((item.kind, item.role, item.why), []).append(item.name)
    return [
        f"{kind} {few(names, _SHOWN)} ({role}): {why}"
        for (kind, role, why), names in groups.items()
    ]


def tensor_lines(tensors: Iterable[LeftOut]) -> list[str]:
    """What tensors are left out, for people: one line for all that are left out for the same reason."""
    groups: dict[str, list[LeftOut]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.why, []).append(tensor)
    return [
        f"{few([x.tensor for x in group], 3)} ({sum(x.elements for x in group):,}): {why}"
        for why, group in groups.items()
    ]


def links_to_nothing(items: Iterable[InventoryItem]) -> list[str]:
    """What a check says of the links of a folder that lead to no file."""
    names = [item.name for item in items if item.kind == "link"]
    return [f"links to files that are not there: {few(names, _SHOWN)}"] if names else []


def unread_files(items: Iterable[InventoryItem], has_tensors: Callable[[str], bool]) -> list[str]:
    """What a check says of the files with tensors that it does not look at, such as those of an older save."""
    return [f"not checked: {x}" for x in lines(item for item in items if has_tensors(item.name))]


def model_section(inventory: Iterable[InventoryItem]) -> str:
    """The name of the section that is read as the model; "" where that has none."""
    found = (x.name for x in inventory if x.kind == "section" and x.role is Role.MODEL)
    return next(found, "").strip(".")


def unread_sections(items: Iterable[InventoryItem]) -> list[str]:
    """What a check says of the sections that it does not look at."""
    return [
        f"section {item.name} ({item.role}) is not read: {item.why}"
        for item in items_left_out(items)
        if item.kind == "section"
    ]

"""Folders that should hold a checkpoint and do not: what was never finished, or was lost since."""

from __future__ import annotations

from pathlib import PurePath

from intarsia.checking.fault import Fault
from intarsia.format.complaint import Complaint
from intarsia.format.registry import FORMATS


def why_unfinished(path: PurePath) -> Fault | None:
    """Why a folder that should hold a checkpoint of any format holds none; the general formats first."""
    asked = (FORMATS[name].unfinished(path) for name in reversed([*FORMATS]))
    found = next(filter(None, asked), None)
    return fault_of(found) if found else None


def fault_of(found: Complaint) -> Fault:
    """A complaint of a format, as a fault."""
    error = found.error
    where = ", ".join(found.files)
    return Fault(error.kind, found.names, where, error.brief, hint=error.hint or "")

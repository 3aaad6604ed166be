"""The SHA-256 that Megatron-core recorded of a checkpoint's files, where it was asked to (`verify_integrity`, from 0.18 on)."""

from __future__ import annotations

from intarsia.errors import FormatError
from intarsia.format.base import Recorded
from intarsia.format.megatron.frame import INTEGRITY
from intarsia.format.strict_json import parse_json
from intarsia.store.reading.file_names import check_name
from intarsia.store.reading.folder import Folder


def recorded_in(folder: Folder) -> Recorded | None:
    """What was recorded; raise where that cannot be read."""
    if not folder.has(INTEGRITY):
        return None
    where = str(folder.root / INTEGRITY)
    found = parse_json(folder.read_all(INTEGRITY), where)
    files = found.get("files") if isinstance(found, dict) else None
    if not isinstance(files, dict) or found.get("algorithm", "sha256") != "sha256":
        raise FormatError("no list of files with their SHA-256", at=where)
    return Recorded(INTEGRITY, {check_name(name, where): str(x) for name, x in files.items()})

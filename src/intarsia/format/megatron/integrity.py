"""The SHA-256 that Megatron-core recorded of a checkpoint's files, where it was asked to (`verify_integrity`, from 0.18 on)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from intarsia.errors import FormatError, IntarsiaError
from intarsia.format.complaint import Complaint
from intarsia.format.megatron.frame import INTEGRITY
from intarsia.format.strict_json import parse_json
from intarsia.planning.manifest import Manifest
from intarsia.store.reading.file_names import check_name
from intarsia.store.reading.folder import Folder

_WORKERS = 4


def altered_files(src: Manifest, folder: Folder) -> Iterator[Complaint]:
    """Files that are absent, or not those that were recorded; an absent one that tensors lie in is missed anyway."""
    if not folder.has(INTEGRITY):
        return
    try:
        recorded = _recorded(folder)
    except IntarsiaError as error:
        error.raise_unless_fault()
        yield Complaint(error, (INTEGRITY,))
        return
    gone = [name for name in recorded if not folder.has(name)]
    for name in gone:
        if name not in src.files:
            text = f"{INTEGRITY} lists {name}, which is absent"
            yield Complaint(FormatError(text, kind="file-missing"), (name,))
    with ThreadPoolExecutor(_WORKERS) as pool:
        held = {name: pool.submit(_sha256, folder, name) for name in recorded if name not in gone}
        for name, found in held.items():
            if found.result() != recorded[name]:
                text = (
                    f"{name} is not the file that was saved: {INTEGRITY} has SHA-256 {recorded[name]}"
                    f" of it, and it has {found.result()}"
                )
                yield Complaint(FormatError(text, kind="checksum-wrong"), (name,))


def _recorded(folder: Folder) -> Mapping[str, str]:
    where = str(folder.root / INTEGRITY)
    found = parse_json(folder.read_all(INTEGRITY), where)
    files = found.get("files") if isinstance(found, dict) else None
    if not isinstance(files, dict) or found.get("algorithm", "sha256") != "sha256":
        raise FormatError(f"no list of files with their SHA-256 - at {where}")
    return {check_name(name, where): str(value) for name, value in files.items()}


def _sha256(folder: Folder, file: str) -> str:
    whole = sha256()
    for _, part in folder.parts(file):
        whole.update(part)
    return whole.hexdigest()

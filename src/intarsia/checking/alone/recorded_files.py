"""Files compared with the SHA-256 that was recorded of them when they were saved."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from hashlib import sha256

from intarsia.checking.alone.unfinished import fault_of
from intarsia.checking.fault import Fault
from intarsia.format.complaint import Complaint
from intarsia.format.registry import folder_of, format_named
from intarsia.planning.manifest import Manifest
from intarsia.run.budget import Budget
from intarsia.run.sharing import share_out
from intarsia.store.reading.folder import Folder


def altered_files(manifest: Manifest, budget: Budget) -> Iterator[Fault]:
    """Files that are absent, or not the recorded ones; an absent one that tensors lie in is missed anyway."""
    unread: list[Complaint] = []
    with folder_of(manifest) as folder:
        recorded = format_named(manifest.format).recorded(folder, unread.append)
        yield from map(fault_of, unread)
        if recorded is None:
            return
        held = [name for name in recorded.sha256 if folder.has(name)]
        for name in recorded.sha256.keys() - {*held} - manifest.files.keys():
            yield Fault("file-missing", (), name, f"{recorded.file} lists {name}, which is absent")
        found = share_out(held, budget.workers, partial(_sha256, folder))
        for name, now in zip(held, found, strict=True):
            if now != recorded.sha256[name]:
                text = (
                    f"{name} is not the file that was saved: {recorded.file} has SHA-256"
                    f" {recorded.sha256[name]} of it, and it has {now}"
                )
                yield Fault("checksum-wrong", (), name, text)


def _sha256(folder: Folder, file: str) -> str:
    whole = sha256()
    for _, part in folder.parts(file):
        whole.update(part)
    return whole.hexdigest()

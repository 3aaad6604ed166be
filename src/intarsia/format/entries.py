"""The bytes of a checkpoint's entries, read one by one."""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.errors import UsageError
from intarsia.planning.manifest import Manifest
from intarsia.quantity import human
from intarsia.store.reading.folder import Folder


def entries_in_place(
    src: Manifest, folder: Folder, limit_bytes: int
) -> Iterator[tuple[str, bytes]]:
    """Entries that lie in their files as they are; raise at one of more than `limit_bytes`."""
    for name, e in src.entries.items():
        if e.length_bytes > limit_bytes:
            raise too_much(src, name, limit_bytes)
        yield name, folder.read(*e.place)


def too_much(src: Manifest, name: str, limit_bytes: int) -> UsageError:
    """Why entries are not read into memory."""
    return UsageError(
        f"the entries of {src.path} take more than {human(limit_bytes)}, their part of"
        f" the memory budget; the limit is reached at `{name}`, one of {len(src.entries)}",
        hint="give more with --memory, or leave them out with --optimizer drop",
    )

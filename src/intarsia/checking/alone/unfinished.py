"""Folders that should hold a checkpoint and do not: what was never finished, or was lost since."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from intarsia.checking.fault import Fault, few
from intarsia.errors import FormatError, StoreError
from intarsia.format.dcp.metadata import METADATA
from intarsia.format.megatron.frame import TRACKER, tracked_folder
from intarsia.store.folder import Folder
from intarsia.store.looking import exists, is_folder, listed, size_of


def garbled_tracker(path: PurePath) -> Iterator[Fault]:
    """A tracker that names no iteration, though Megatron goes by it."""
    try:
        with Folder(path) as folder:
            word = folder.read_all(TRACKER).decode("utf-8", "replace").strip()
    except FormatError:
        return
    except StoreError as error:
        error.blame()
        yield Fault(error.kind, (), TRACKER, error.brief)
        return
    if not re.fullmatch(r"\d{1,18}|release", word):
        text = f"{TRACKER} holds {word[:40]!r}, which is no iteration"
        yield Fault("malformed", (), TRACKER, text, hint="write the iteration's number into it")


def unfinished(path: PurePath) -> Fault | None:
    """Data files of DCP that lack their metadata, or a tracker's iteration that is not there."""
    folders: Iterable[PurePath] = (path, *listed(path, "iter_*")) if is_folder(path) else ()
    for folder in folders:
        files = listed(folder, "*.distcp")
        metadata = folder / METADATA
        if files and not exists(metadata):
            text = f"{len(files)} data files and no {METADATA}, which is written last"
            return Fault("metadata-missing", (), str(folder), text)
        if files and not size_of(metadata):
            text = f"{len(files)} data files, and {METADATA}, which is written last, is empty"
            return Fault("metadata-missing", (), str(folder), text)
    tracked = tracked_folder(path) if is_folder(path) else None
    if tracked is not None and not is_folder(tracked):
        held = few([p.name for p in listed(path, "iter_*")], 4)
        text = f"{TRACKER} names {tracked.name}, which is absent; there is {held or 'none'}"
        return Fault("file-missing", (), str(path / TRACKER), text)
    return None

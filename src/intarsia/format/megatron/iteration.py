"""Which iteration a Megatron checkpoint is of, by its folder and its common state, and the one that a tracker names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from intarsia.errors import FormatError, few
from intarsia.format.complaint import Complaint, reported_elsewhere
from intarsia.format.megatron.common import read_state
from intarsia.format.megatron.frame import COMMON_FILE, COMMON_OBJECT, TRACKER, tracked_folder
from intarsia.format.torch_file.plain import number_in
from intarsia.planning.manifest import Manifest
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import is_folder, names_like

ITERATION = "iteration"
_SHOWN = 4


def misplaced_iteration(src: Manifest, folder: Folder) -> Iterator[Complaint]:
    """Common states, in any of their homes, that are not of their folder's iteration."""
    home = PurePath(src.path).name
    named = re.fullmatch(r"iter_(\d+)", home)
    for where, name, data in _common_states(src, folder) if named else ():
        try:
            state = read_state(data, where)
        except FormatError:
            continue  # reported as a damaged entry
        counted = number_in(state.get(ITERATION) if isinstance(state, dict) else state)
        if named and type(counted) is int and counted != int(named[1]):
            text = f"the common state is of iteration {counted:,}, but its folder is {home}"
            error = FormatError(text, kind="steps-disagree")
            yield Complaint(error, (where,), (name,))


def _common_states(src: Manifest, folder: Folder) -> Iterator[tuple[str, str, bytes]]:
    """File, entry and bytes of `torch_dist`'s whole common state, and of Megatron-FSDP's iteration."""
    with reported_elsewhere():
        if folder.has(COMMON_FILE):
            yield COMMON_FILE, COMMON_OBJECT, folder.read_all(COMMON_FILE)
        for name in (COMMON_OBJECT, ITERATION):
            entry = src.entries.get(name)
            if entry is not None and entry.file != COMMON_FILE:
                yield entry.file, name, folder.read_small(*entry.place)


def untracked(path: PurePath) -> Complaint | None:
    """A tracker's iteration that is not there."""
    tracked = tracked_folder(path) if is_folder(path) else None
    if tracked is None or is_folder(tracked):
        return None
    held = [p.name for p in names_like(path, "iter_*")]
    text = f"{TRACKER} names {tracked.name}, which is absent; present:"
    text += f" {few(held, _SHOWN)}" if held else " none"
    return Complaint(FormatError(text, kind="file-missing"), (str(path / TRACKER),))

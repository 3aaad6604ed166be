"""The small files and objects around a Megatron checkpoint: how they are named, and which iteration is tracked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from intarsia.errors import FormatError, StoreError
from intarsia.format.complaint import Complaint
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import exists, itself

TRACKER = "latest_checkpointed_iteration.txt"
METADATA = ".metadata"
COMMON_FILE = "common.pt"
INTEGRITY = "integrity.json"
RELEASE = "release"
COMMON_OBJECT = "common_state/shard_0_1"
COUNTERS = ("iteration", "checkpoint_version", "num_floating_point_operations_so_far")
SCHEDULER = "opt_param_scheduler"
FRAME_BYTES = 1 << 20
FRAME = re.compile(
    r"^(metadata\.json|common\.pt|integrity\.json|latest_.*|run_config\.yaml|.*\.sha256)$"
)
"""Files of the frame around the tensors, which each checkpoint has of its own."""


def home_of(root: PurePath) -> PurePath | None:
    """Where the model configuration lies: with the tensors, or beside the iterations."""
    return next((p for p in (root, root.parent) if itself(p / "config.json") is not None), None)


def tracked_folder(path: PurePath) -> PurePath | None:
    """The folder of the iteration that a tracker file names, if there is such a file."""
    try:
        with Folder(path) as folder:
            word = folder.read_all(TRACKER, FRAME_BYTES).decode("ascii", "replace").strip()
    except FormatError:
        return None
    if word == RELEASE:
        return path / RELEASE
    return path / f"iter_{int(word):07d}" if re.fullmatch(r"\d{1,18}", word) else None


def garbled_tracker(path: PurePath) -> Iterator[Complaint]:
    """A tracker that names no iteration, though Megatron goes by it."""
    try:
        with Folder(path) as folder:
            word = folder.read_all(TRACKER).decode("utf-8", "replace").strip()
    except (FormatError, StoreError) as error:
        if isinstance(error, StoreError) or exists(path / TRACKER):
            yield Complaint(error, (TRACKER,))
        return
    if not re.fullmatch(r"\d{1,18}|release", word):
        text = f"{TRACKER} holds {word[:40]!r}, which is not an iteration"
        wrong = FormatError(text, hint="write the iteration's number into it")
        yield Complaint(wrong, (TRACKER,))

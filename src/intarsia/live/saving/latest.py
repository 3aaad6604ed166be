"""Which of several checkpoints in a folder is the last: a small file that is replaced in one step."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from intarsia.errors import FormatError, IntarsiaError, StoreError
from intarsia.format.folder.run_folder import LATEST, named_latest
from intarsia.store.local.swap import sync_path
from intarsia.store.lookup import exists, is_file
from intarsia.store.naming import naming

_STEP = re.compile(r"\d+$")


def numbered(path: Path) -> bool:
    """Whether a checkpoint's name ends in its step, so that it is one of several.

    >>> numbered(Path("runs/step-500")), numbered(Path("runs/final"))
    (True, False)
    """
    return _STEP.search(path.name) is not None


def name_last(path: Path, latest: bool | None) -> None:
    """Make a checkpoint that is in its place the last of its folder, if that is asked or it continues a series.

    Whatever fails here takes nothing from the checkpoint, and the error says so.
    """
    try:
        if _continues(path) if latest is None else latest:
            _point(path)
    except IntarsiaError as error:
        error.hint = (
            f"{path} is complete and in its place; write its name into {path.parent / LATEST}"
        )
        raise


def _continues(path: Path) -> bool:
    """Whether a checkpoint is the next of the series that `latest` names, or the first of one.

    A series goes by the text before the number: `ema-4` does not continue `step-4`.
    """
    if not numbered(path):
        return False
    named = named_latest(path.parent)
    return not named or _STEP.sub("", named) == _STEP.sub("", path.name)


def _point(path: Path) -> None:
    """Let `latest` name a checkpoint; a reader finds the old name or the new one."""
    file = path.parent / LATEST
    fresh = file.with_name(f".{LATEST}.{os.getpid()}")
    if exists(file) and not is_file(file):
        raise FormatError(
            f"{file} is not a file, so the name of the last checkpoint cannot be written into it"
        )
    try:
        with naming(file, lasting=True):
            with open(fresh, "w") as out:
                out.write(path.name + "\n")
                out.flush()
                os.fsync(out.fileno())
            os.replace(fresh, file)
        sync_path(path.parent)
    except StoreError:
        with suppress(OSError):
            fresh.unlink()
        raise

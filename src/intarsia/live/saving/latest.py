"""Which of several checkpoints in a folder is the last: a small file that is replaced in one step."""

from __future__ import annotations

import re
from pathlib import PurePath

from intarsia.errors import FormatError, IntarsiaError
from intarsia.format.folder.run_folder import LATEST, named_latest
from intarsia.store.reading.lookup import exists, is_file
from intarsia.store.registry import store_of
from intarsia.store.system_errors import errors_naming

_STEP = re.compile(r"\d+$")


def numbered(path: PurePath) -> bool:
    """Whether a checkpoint's name ends in its step, so that it is one of several.

    >>> numbered(PurePath("runs/step-500")), numbered(PurePath("runs/final"))
    (True, False)
    """
    return _STEP.search(path.name) is not None


def name_last(path: PurePath, latest: bool | None) -> None:
    """Make a checkpoint that is in its place the last of its folder, if that is asked or it continues a series.

    Whatever fails here takes nothing from the checkpoint.
    """
    try:
        if _continues(path) if latest is None else latest:
            _point(path)
    except IntarsiaError as error:
        error.hint = f"write the name {path.name} into {path.parent / LATEST}"
        raise


def _continues(path: PurePath) -> bool:
    """Whether a checkpoint is the next of the series that `latest` names, or the first of one.

    A series goes by the text before the number: `ema-4` does not continue `step-4`.
    """
    if not numbered(path):
        return False
    named = named_latest(path.parent)
    return not named or _STEP.sub("", named) == _STEP.sub("", path.name)


def _point(path: PurePath) -> None:
    """Let `latest` name a checkpoint; a reader finds the old name or the new one."""
    file = path.parent / LATEST
    if exists(file) and not is_file(file):
        raise FormatError(
            f"{file} is not a file, so the name of the last checkpoint cannot be written into it"
        )
    with errors_naming(file, lasting=True):
        store_of(file).put(file, f"{path.name}\n".encode())

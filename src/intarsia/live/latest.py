"""Which of several checkpoints in a folder is the last: a small file that is replaced in one step."""

from __future__ import annotations

import os
import re
from pathlib import Path

from intarsia.errors import FormatError
from intarsia.store.naming import naming
from intarsia.store.swap import sync_path

LATEST = "latest"
_STEP = re.compile(r"\d+$")


def numbered(path: Path) -> bool:
    """Whether a checkpoint's name ends in its step, so that it is one of several.

    >>> numbered(Path("runs/step-500")), numbered(Path("runs/final"))
    (True, False)
    """
    return _STEP.search(path.name) is not None


def point(path: Path) -> None:
    """Make `path` the last checkpoint of its folder; a reader finds the old one or the new one."""
    file = path.parent / LATEST
    fresh = file.with_name(f".{LATEST}.{os.getpid()}")
    with naming(file):
        if file.exists() and not file.is_file():
            raise FormatError(f"{file} is no file, so it cannot name the last checkpoint")
        with open(fresh, "w") as out:
            out.write(path.name + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(fresh, file)
        sync_path(path.parent)


def resolve(path: str | Path) -> Path:
    """The checkpoint that a path means: itself, or the last one of a folder that names it."""
    where = Path(path)
    file = where / LATEST
    if not file.is_file():
        return where
    name = file.read_text(errors="replace").strip()
    if not name or "/" in name or name in (".", "..") or not (where / name).exists():
        raise FormatError(
            f"{file} names {name!r}, which is not in {where}",
            hint="give the folder of the checkpoint itself",
        )
    return where / name

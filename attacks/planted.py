"""Exploits of a destination: links planted where a conversion writes, to what lies outside of it.

`outside` beside the home of source and destination must not be changed.  The destination is `out`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import intarsia
from attacks import models, sound


def _plant(folder: Path, name: str, to: str = "folder") -> None:
    """A sound source, and a link in its parent folder."""
    sound.hf(folder)
    (folder.parent / name).symlink_to(_outside(folder) / to)


def _outside(folder: Path) -> Path:
    return folder.parent.parent / "outside"


class _KilledError(Exception):
    pass


def _begun(folder: Path, spoil: Callable[[Path, Path], None]) -> None:
    """A conversion that was killed, with what it left spoiled before somebody resumes it."""
    models.hf(folder)

    def kill(done: int, total: int) -> None:
        if done:
            raise _KilledError

    try:
        intarsia.convert(folder, folder.parent / "out", to="hf", workers=1, progress=kill)
    except _KilledError:
        partial = folder.parent / ".out.intarsia-partial"
        spoil(partial, folder.parent / ".out.intarsia-journal")


def destination_that_is_a_link(folder: Path, canary: Path) -> None:
    """The destination is a link to a folder outside."""
    _plant(folder, "out")


def destination_that_is_a_link_to_nothing(folder: Path, canary: Path) -> None:
    """The destination is a link to a folder that does not exist yet."""
    _plant(folder, "out", "new")


def lock_that_is_a_link(folder: Path, canary: Path) -> None:
    """The lock is a link to a file outside."""
    _plant(folder, ".out.intarsia-lock", "file")


def lock_that_is_a_link_to_nothing(folder: Path, canary: Path) -> None:
    """The lock is a link to a file that opening it would create."""
    _plant(folder, ".out.intarsia-lock", "new")


def partial_folder_that_is_a_link(folder: Path, canary: Path) -> None:
    """The folder for what is not whole yet is a link to a folder outside, which would be cleared."""
    _plant(folder, ".out.intarsia-partial")


def partial_folder_that_is_a_link_to_nothing(folder: Path, canary: Path) -> None:
    """The folder for what is not whole yet is a link to nothing."""
    _plant(folder, ".out.intarsia-partial", "new")


def journal_that_is_a_link(folder: Path, canary: Path) -> None:
    """The journal is a link to a folder outside, which would be cleared."""
    _plant(folder, ".out.intarsia-journal")


def replaced_folder_that_is_a_link(folder: Path, canary: Path) -> None:
    """What a killed overwriting would have put aside is a link, which would become the destination."""
    _plant(folder, ".out.intarsia-partial-replaced")


def partial_folder_with_links_for_files(folder: Path, canary: Path) -> None:
    """A killed run's files are replaced by links to a file outside; then it is resumed."""

    def spoil(partial: Path, journal: Path) -> None:
        for path in [p for p in partial.rglob("*") if p.is_file()]:
            path.unlink()
            path.symlink_to(_outside(folder) / "file")

    _begun(folder, spoil)


def partial_folder_with_a_link_for_a_folder(folder: Path, canary: Path) -> None:
    """The side folder of a killed run is replaced by a link to a folder outside."""

    def spoil(partial: Path, journal: Path) -> None:
        shutil.rmtree(partial / "optimizer")
        (partial / "optimizer").symlink_to(_outside(folder) / "folder")

    _begun(folder, spoil)


def journal_with_links(folder: Path, canary: Path) -> None:
    """The files that a resumed run writes its journal to are links to files outside."""

    def spoil(partial: Path, journal: Path) -> None:
        for name, to in (("job.new", "file"), ("1-0", "file"), ("2-0", "new")):
            (journal / name).symlink_to(_outside(folder) / to)

    _begun(folder, spoil)

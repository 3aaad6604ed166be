"""The file that a page is written to: whole or not at all, and never over something else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from intarsia.collector import paused
from intarsia.errors import StoreError, UsageError
from intarsia.report.content import PageContent
from intarsia.report.page import page_of

_OPENING = b"<!DOCTYPE html>"


def check_page(path: str | Path) -> None:
    """Refuse a path that no page may be written to, before any work is done for it."""
    where = Path(os.path.expanduser(path))
    try:
        if not where.parent.is_dir():
            raise UsageError(
                f"{where.parent} is not a folder", hint="create it, or name another --html"
            )
        if not where.exists():
            return
        if not where.is_file():
            raise UsageError(
                f"{where} is not a file", hint="name a file to write, such as report.html"
            )
        with where.open("rb") as file:
            opening = file.read(len(_OPENING))
    except OSError as error:
        raise StoreError(f"cannot read {where}: {error.strerror}") from error
    if opening and opening.lower() != _OPENING.lower():
        raise UsageError(
            f"{where} exists and is not a page of Intarsia",
            hint="name another file, or remove this one",
        )


def write_page(path: str | Path, story: PageContent) -> None:
    """Write the page of a story; one that was there before is replaced in one step."""
    check_page(path)
    where = Path(os.path.expanduser(path))
    with paused():
        text = page_of(story)
    try:
        fd, partial = tempfile.mkstemp(".partial", f".{where.name[:100]}.", where.parent)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(partial, 0o666 & ~_umask())
            os.replace(partial, where)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError as error:
        raise StoreError(
            f"cannot write {where}: {error.strerror}", hint="name another --html"
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Names that a checkpoint gives to its files."""

from __future__ import annotations

import os

from intarsia.errors import FormatError, UnsafeError


def check_name(name: object, where: str, path: object = None) -> str:
    """A file name that a checkpoint gives, or a part of a path: one that stays in the checkpoint's own folder."""
    if not isinstance(name, str) or not name or "\0" in name or len(name) > 255:
        shown = repr(name[:80]) if isinstance(name, str) else f"a {type(name).__name__}"
        raise FormatError(f"{shown} is not a file name", at=where)
    if name in (".", "..") or "/" in name or "\\" in name or ":" in name:
        raise UnsafeError(
            f"{where} names {path or name!r}, which is outside of its folder",
            hint="get the checkpoint from a source that you trust, or correct the name",
        )
    try:
        fits = len(os.fsencode(name)) <= 255
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise FormatError(f"{name[:80]!r} is not a file name", at=where)
    return name


def check_inside(name: object, where: str) -> str:
    """A relative path that a checkpoint gives: one that stays below the checkpoint's own folder."""
    inside = isinstance(name, str) and all(name.split("/"))
    for part in str(name).split("/") if inside else (name,):
        check_name(part, where, name)
    return str(name)

"""Names of files and folders: a `PurePath`, which cannot touch a disk; a URL's is an `Address`."""

from __future__ import annotations

import re
from os import PathLike, fspath
from pathlib import PurePath, PurePosixPath

from intarsia.errors import UsageError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class Address(PurePosixPath):
    """A name in a store that is not the local one; its first part is the scheme of its URL.

    >>> Address("memory://runs/step-5") / "model.safetensors"
    Address('memory://runs/step-5/model.safetensors')
    """

    __slots__ = ()

    @property
    def scheme(self) -> str:
        """What the URL begins with, which says the store."""
        return self.parts[0].removesuffix(":")

    def __str__(self) -> str:
        head, *rest = self.parts or (".",)
        return f"{head}//{'/'.join(rest)}" if head.endswith(":") else super().__str__()

    def __fspath__(self) -> str:
        raise TypeError(f"{self} is not a path of the local file system")

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"


def named(text: str | PathLike[str]) -> PurePath:
    """The name that a text gives: a URL's address, or a path of the local file system."""
    if isinstance(text, PurePath):
        return text
    found = fspath(text) if isinstance(text, str | PathLike) else text
    if not isinstance(found, str):
        raise UsageError(
            f"a path is text or an os.PathLike of text, found {found!r} of type {type(found).__name__}",
            hint="give the path of a checkpoint",
        )
    url = _URL.fullmatch(found)
    if url is None:
        return PurePath(found)
    below = url[2].removesuffix("/")
    if url[1] != "file" and below and not {"", "."}.isdisjoint(below.split("/")):
        raise UsageError(
            f"{found} has an empty part or `.` in its path, which would be left out of the name",
            hint="give the URL without it, or rename what is stored there",
        )
    return Address(found)


def lost_slash(path: PurePath) -> str | None:
    """The URL that a path was made from; None where it is a plain path.

    >>> lost_slash(PurePath("s3://bucket/run")), lost_slash(PurePath("C:/run"))
    ('s3://bucket/run', None)
    """
    head, *rest = path.parts or ("",)
    return f"{head}//{'/'.join(rest)}" if rest and _SCHEME.fullmatch(head) else None

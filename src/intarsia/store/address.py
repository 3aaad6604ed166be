"""Names of files and folders: a `PurePath`, which cannot touch a disk; a URL's is an `Address`."""

from __future__ import annotations

import re
from os import PathLike, fspath
from pathlib import PurePath, PurePosixPath

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://.*", re.DOTALL)


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
    text = fspath(text)
    return Address(text) if _URL.fullmatch(text) else PurePath(text)

"""Numbered files whose numbers say that there are more, though the index names no others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from intarsia.format.base import AbsentFiles

_NUMBERED = re.compile(r"^(?P<stem>.*)-(?P<k>\d{5})-of-(?P<n>\d{5})\.safetensors$")


def absent_of_sets(files: Collection[str]) -> Iterator[AbsentFiles]:
    """The files that each numbered set lacks.

    >>> [found.names for found in absent_of_sets(["m-00001-of-00002.safetensors"])]
    [['m-00002-of-00002.safetensors']]
    """
    sets: dict[tuple[str, int], dict[str, set[int]]] = {}
    for file in files:
        if found := _NUMBERED.match(file):
            folder, _, stem = found["stem"].rpartition("/")
            folders = sets.setdefault((stem, int(found["n"])), {})
            folders.setdefault(folder, set()).add(int(found["k"]))
    for (stem, n), folders in sets.items():
        for folder, numbers in _sets_of(folders).items():
            lost = sorted(set(range(1, n + 1)) - numbers)
            at = f"{folder}/{stem}" if folder else stem
            if lost and max(numbers) <= n:
                names = [f"{at}-{k:05d}-of-{n:05d}.safetensors" for k in lost]
                yield AbsentFiles(n, len(numbers), names)


def _sets_of(folders: Mapping[str, set[int]]) -> Mapping[str, set[int]]:
    """The numbers of each set of files: one set may lie in several folders, where no number is twice."""
    together = set().union(*folders.values())
    if len(folders) == 1 or len(together) < sum(map(len, folders.values())):
        return folders
    return {"": together}

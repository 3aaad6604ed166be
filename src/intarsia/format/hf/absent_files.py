"""Numbered files whose numbers say that there are more, though the index names no others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from intarsia.format.base import AbsentFiles
from intarsia.format.hf.weight_sets import numbered_set, set_size, stem_of_file


def absent_of_sets(files: Collection[str]) -> Iterator[AbsentFiles]:
    """The files that each numbered set lacks.

    >>> [found.names for found in absent_of_sets(["m-00001-of-00002.safetensors"])]
    [['m-00002-of-00002.safetensors']]
    """
    sets: dict[tuple[str, str], dict[str, list[str]]] = {}
    for file in files:
        folder, _, name = file.rpartition("/")
        if count := set_size(name):
            folders = sets.setdefault((stem_of_file(name), count), {})
            folders.setdefault(folder, []).append(name)
    for folders in sets.values():
        for folder, names in _sets_of(folders).items():
            found = numbered_set(names)
            # Where a name claims more than can be listed, reading it has said so.
            if found and found.absent and len(found.held) + len(found.absent) == found.total:
                lost = [f"{folder}/{name}" if folder else name for name in found.absent]
                yield AbsentFiles(found.total, len(found.held), lost)


def _sets_of(folders: Mapping[str, list[str]]) -> Mapping[str, list[str]]:
    """The files of each set: one set may lie in several folders, where no name is twice."""
    together = [*chain.from_iterable(folders.values())]
    alone = len(folders) == 1 or len({*together}) < len(together)
    return folders if alone else {"": together}

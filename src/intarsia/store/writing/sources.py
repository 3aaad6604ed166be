"""Files that are read, which no destination may hold: to replace it would remove them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import PurePath

from intarsia.errors import UsageError
from intarsia.store.address import Address, named
from intarsia.store.local.destination import look
from intarsia.store.reading.lookup import everything_in, exists, itself, real


def check_sources(destination: PurePath, sources: Iterable[str], *, overwrite: bool) -> None:
    """Refuse a destination that holds a file which is read, by whatever links and mounts it is reached."""
    home = real(destination)
    inside = {_number(path) for path in everything_in(destination)} if overwrite else set()
    number = _number(destination) if exists(destination) else None
    above: dict[PurePath, bool] = {}
    for source in sources:
        to = real(named(source))
        if to.parent not in above:
            parents = (to.parent, *to.parent.parents)
            above[to.parent] = home in parents or (
                number is not None and number in map(_number, parents)
            )
        found = None if isinstance(to, Address) else look(to)
        same = found is not None and (found.st_dev, found.st_ino) in inside
        if above[to.parent] or to == home or (same and found is not None and _is_last(found)):
            raise UsageError(
                f"{destination} contains the source: {to} is read",
                hint="choose another destination",
            )


def _is_last(found: os.stat_result) -> bool:
    """Whether a file has no other name, so that removing this one would lose it."""
    return found.st_nlink == 1 or bool(found.st_mode & 0o040000)


def _number(path: PurePath) -> tuple[int, int] | None:
    found = None if isinstance(path, Address) else itself(path)
    return None if found is None else found.number

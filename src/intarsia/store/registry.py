"""Which store a name belongs to: each scheme of a URL has one, and a plain path is local."""

from __future__ import annotations

from functools import cache
from pathlib import PurePath

from intarsia.entry_point import made_by
from intarsia.errors import UsageError
from intarsia.store.address import Address
from intarsia.store.base import Store

GROUP = "intarsia.stores"
"""The entry points by which packages add stores, each its scheme and its class."""

_REGISTERED: dict[str, Store] = {}


def register(scheme: str, store: Store) -> None:
    """Let URLs that begin with `scheme://` lead to a store, in this process."""
    _REGISTERED[scheme] = store


def store_of(path: PurePath) -> Store:
    """The store that a name belongs to."""
    if not isinstance(path, Address):
        return _local()
    found = _REGISTERED.get(path.scheme) or _installed(path.scheme)
    if found is None:
        raise UsageError(
            f"{path} cannot be opened: no store is registered for {path.scheme}://",
            hint="give the path itself, without file://"
            if path.scheme.lower() == "file"
            else "copy the checkpoint to a local folder, or register a store for it"
            " (docs/how-to/add-a-store.md)",
        )
    return found


@cache
def _local() -> Store:
    from intarsia.store.local.store import LocalStore  # it asks this file, too

    return LocalStore()


@cache
def _installed(scheme: str) -> Store | None:
    """The store that an installed package has for a scheme; None where none has."""
    from importlib.metadata import entry_points  # it takes some 80 ms

    points = entry_points(group=GROUP, name=scheme)
    if len({point.value for point in points}) > 1:
        raise UsageError(
            f"several packages have a store for {scheme}://:"
            f" {', '.join(sorted(point.value for point in points))}",
            hint="uninstall all but one of them",
        )
    for point in points:
        found: Store = made_by(point, f"the store for {scheme}://")
        return found
    return None

"""Which store a name belongs to: each scheme of a URL has one, and a plain path is local."""

from __future__ import annotations

from functools import cache
from pathlib import PurePath

from intarsia.errors import UsageError
from intarsia.store.address import Address
from intarsia.store.base import Store

_STORES: dict[str, Store] = {}


def register(scheme: str, store: Store) -> None:
    """Let URLs that begin with `scheme://` lead to a store."""
    _STORES[scheme] = store


def store_of(path: PurePath) -> Store:
    """The store that a name belongs to."""
    if not isinstance(path, Address):
        return _local()
    try:
        return _STORES[path.scheme]
    except KeyError:
        raise UsageError(
            f"{path} leads nowhere: no store is registered for {path.scheme}://",
            hint="copy the checkpoint to a local folder, or register a store for it"
            " (docs/how-to/add-a-store.md)",
        ) from None


@cache
def _local() -> Store:
    from intarsia.store.local.store import LocalStore  # it asks this file, too

    return LocalStore()

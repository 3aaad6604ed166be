"""What writes a destination: the local store's own class, or a transaction of another store."""

from __future__ import annotations

from pathlib import PurePath

from intarsia.errors import UsageError
from intarsia.store.address import Address
from intarsia.store.contents import Judge
from intarsia.store.local.staging import Staging
from intarsia.store.lookup import given
from intarsia.store.store_staging import StoreStaging

Writer = Staging | StoreStaging


def writer_to(destination: str | PurePath, *, overwrite: bool, judge: Judge, alone: bool) -> Writer:
    """What writes a destination; several processes, unless one is `alone`, write a local one."""
    where = given(destination)
    if not isinstance(where, Address):
        return Staging(where, overwrite=overwrite, judge=judge)
    if not alone:
        raise UsageError(
            f"{where} can be written by one process only, and several are running",
            hint="run without torchrun, or give a local folder that all ranks share",
        )
    return StoreStaging(where, overwrite=overwrite, judge=judge)

"""URLs that lead to no store, and what a store that is not local does not do."""

from __future__ import annotations

import sys
from pathlib import Path

import intarsia
from intarsia.store import registry
from intarsia.store.base import Store
from intarsia.store.registry import register
from intarsia.store.writing.staging import Staging
from tests.checkpoints import llama_config, model, write_hf
from tests.refusals.case import refusal
from tests.store.memory_store import MemoryStore


@refusal("A URL whose scheme has no store", area="operations")
def no_store(tmp: Path) -> None:
    intarsia.open("s3://bucket/model")


@refusal("A destination for several processes in a store that they do not share", area="operations")
def several_processes_elsewhere(tmp: Path) -> None:
    register("memory", MemoryStore())
    Staging("memory://out", alone=False)


@refusal("A destination in a store that is only read", area="operations")
def only_read(tmp: Path) -> None:
    register("memory", _OnlyRead())
    intarsia.convert(
        write_hf(tmp / "model", model(llama_config()), llama_config()), "memory://out", to="dcp"
    )


class _OnlyRead(MemoryStore):
    transaction = Store.transaction  # type: ignore[assignment]


@refusal("A store whose package cannot be loaded", area="operations")
def broken_package(tmp: Path) -> None:
    _open_with(tmp, "bucket_store")


@refusal("A scheme for which two packages have a store", area="operations")
def two_packages(tmp: Path) -> None:
    _open_with(tmp, "bucket_store", "other_store")


def _open_with(tmp: Path, *packages: str) -> None:
    """Open a URL where packages are installed that have a store for it, by their word."""
    for package in packages:
        info = tmp / f"{package}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {package}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[intarsia.stores]\nbucket = {package}:Store\n")
    sys.path.insert(0, str(tmp))
    registry._installed.cache_clear()
    try:
        intarsia.open("bucket://model")
    finally:
        sys.path.remove(str(tmp))
        registry._installed.cache_clear()

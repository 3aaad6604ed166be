"""Formats of other packages and programs that cannot be added, or that claim the same folder."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from unittest.mock import patch

import intarsia
from intarsia.format import added
from intarsia.format.hf.checkpoint import Hf
from tests.refusals.case import refusal


class Weights(Hf):
    """A format of another name with files of its own."""

    name = "weights"

    def detect(self, path: object) -> bool:
        return Path(str(path), "weights.bin").exists()


class Others(Weights):
    """A second one that takes the same files for its own."""

    name = "others"


@refusal("A format that is registered under the name of another", area="formats")
def taken_name(tmp: Path) -> None:
    added.register(Hf())


@refusal("A package whose format cannot be loaded", area="formats")
def broken_package(tmp: Path) -> None:
    point = EntryPoint("weights", "no_such_package:Weights", added.GROUP)
    added._installed.cache_clear()
    try:
        with patch("importlib.metadata.entry_points", lambda group: [point]):
            intarsia.convert(tmp / "model", tmp / "out", to="weights")
    finally:
        added._installed.cache_clear()


@refusal("A folder that two added formats take for theirs", area="formats")
def claimed_twice(tmp: Path) -> None:
    (tmp / "model").mkdir()
    (tmp / "model" / "weights.bin").write_bytes(b"")
    for format in (Weights(), Others()):
        added.register(format)
    try:
        intarsia.open(tmp / "model")
    finally:
        for name in ("weights", "others"):
            added.unregister(name)

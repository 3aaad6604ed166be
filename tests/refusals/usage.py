"""Calls that cannot be carried out as asked."""

from __future__ import annotations

from pathlib import Path

import intarsia
from tests.checkpoints import llama_config
from tests.refusals.case import refusal


@refusal("A format that does not exist", area="usage")
def unknown_format(tmp: Path) -> None:
    intarsia.convert(tmp / "model", tmp / "out", to="nemo")


@refusal("A path without a checkpoint", area="usage")
def no_checkpoint(tmp: Path) -> None:
    (tmp / "empty").mkdir()
    intarsia.open(tmp / "empty", llama_config())

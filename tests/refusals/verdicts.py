"""Checkpoints that lost what tells their kind."""

from __future__ import annotations

from pathlib import Path

import intarsia
from tests.checkpoints import llama_config, model, write_hf
from tests.refusals.case import refusal


@refusal("Megatron's folder without its metadata.json", area="verdicts")
def no_backend(tmp: Path) -> None:
    config = llama_config()
    write_hf(tmp / "model", model(config), config)
    intarsia.convert(tmp / "model", tmp / "run", to="torch_dist")
    (tmp / "run" / "iter_0000001" / "metadata.json").unlink()
    intarsia.open(tmp / "run")

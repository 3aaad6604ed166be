"""Trainer under FSDP: what it saved, whole or sharded, is converted, and training goes on as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import intarsia
from tests.distributed.ranks import on_ranks_with
from tests.journeys.trainer_fsdp import losses


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_a_run_goes_on_from_what_was_converted(tmp_path: Path, kind: str) -> None:
    def trained(output: str, resume: Path | None = None) -> list[float]:
        return on_ranks_with(losses.__module__, 2, losses, tmp_path / output, kind, resume)[0]

    before = trained("run")
    src, copy = tmp_path / "run" / "checkpoint-2", tmp_path / "copy" / "checkpoint-2"
    if kind == "FULL_STATE_DICT":
        copy.parent.mkdir()
        intarsia.convert(src, copy, to="hf", max_shard_size="10KB")
    else:
        parts = ("pytorch_model_fsdp_0", "optimizer_0")
        shutil.copytree(src, copy, ignore=shutil.ignore_patterns(*parts))
        for part in parts:
            intarsia.convert(src / part, copy / part, to="dcp", mesh="fsdp=3", section=".")
    assert intarsia.verify(src, copy, section="." if kind != "FULL_STATE_DICT" else None)
    assert trained("resumed", copy) == before

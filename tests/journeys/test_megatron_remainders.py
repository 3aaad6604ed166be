"""Megatron's precision-aware optimizer stores half of each main weight; what is made of it has them whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import ROOT, environment
from tests.format.megatron.optimizer.halves import join, remainder_of

pytestmark = [pytest.mark.megatron, pytest.mark.slow]


def test_main_weights_are_whole_again_however_megatron_stored_their_halves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.journeys.megatron_remainders", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, env=environment(), capture_output=True)
    for sharding, dtype in (("dp_reshardable", "I16"), ("fully_reshardable", "F32")):
        source = tmp_path / sharding
        assert intarsia.verify(source)
        opened = intarsia.open(source)
        stored = [
            s for s in opened.manifest.stored.values() if s.name.startswith("optimizer.master")
        ]
        assert {s.dtype.name for s in stored} == {dtype}
        assert any("--use-precision-aware-optimizer" in note for note in opened.manifest.notes)
        folders = [tmp_path / f"{sharding}-{name}" for name in ("hub", "cut")]
        intarsia.convert(source, folders[0], to="hf")
        intarsia.convert(source, folders[1], to="torch_dist", mesh="tp=2,pp=2")
        for folder in folders:
            assert intarsia.verify(source, folder)
            found = intarsia.open(folder)
            weights = [name for name in found if not name.startswith("optimizer.")]
            assert weights
            for name in weights:
                weight, main = found[name][:], found[f"optimizer.master.{name}"][:]
                assert torch.equal(main, join(weight, remainder_of(weight))), name

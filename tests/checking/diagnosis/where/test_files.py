"""A fault names the file whose elements differ as a whole, whichever side holds it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import intarsia
from tests.checkpoints import write_hf
from tests.faults.reference import DENSE, weights


@pytest.mark.parametrize("turned", [False, True], ids=["in A", "in B"])
@pytest.mark.parametrize("shard", ["100KB", "1GB"])
def test_a_rank_s_older_file_is_named_beside_files_that_are_cut_otherwise(
    tmp_path: Path, shard: str, turned: bool
) -> None:
    stale, sound = tmp_path / "stale", tmp_path / "sound"
    for path, seed in ((stale, 0), (tmp_path / "older", 1)):
        source = write_hf(tmp_path / f"hf{seed}", weights(DENSE, seed=seed), DENSE)
        intarsia.convert(source, path, to="dcp", mesh="fsdp=2")
    shutil.copy(tmp_path / "older/__1_0.distcp", stale)
    intarsia.convert(tmp_path / "hf0", sound, to="hf", max_shard_size=shard)
    sides = (sound, stale) if turned else (stale, sound)
    (fault,) = intarsia.verify(*sides).faults
    assert fault.kind == "rank-stale"
    assert "__1_0.distcp" in fault.text
    assert ".safetensors" not in fault.text

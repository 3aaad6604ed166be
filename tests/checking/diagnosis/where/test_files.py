"""A fault names the file whose elements differ as a whole, whichever side holds it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import intarsia
from tests.checkpoints import write_hf
from tests.faults.reference import DENSE, weights


@pytest.mark.parametrize("turned", [False, True], ids=["in A", "in B"])
@pytest.mark.parametrize("shard", ["100KB", "1GB"])
@pytest.mark.parametrize("layers", ["", "layers.[01]."], ids=["all layers", "two layers"])
@pytest.mark.one_in(5)
def test_a_rank_s_older_file_is_named_beside_files_that_are_cut_otherwise(
    tmp_path: Path, layers: str, shard: str, turned: bool
) -> None:
    stale, sound = tmp_path / "stale", tmp_path / "sound"
    older = {n: x for n, x in weights(DENSE, seed=1).items() if re.search(layers, n)}
    for path, changed in ((stale, {}), (tmp_path / "older", older)):
        source = write_hf(tmp_path / f"hf-{path.name}", weights(DENSE) | changed, DENSE)
        intarsia.convert(source, path, to="dcp", mesh="fsdp=2")
    shutil.copy(tmp_path / "older/__1_0.distcp", stale)
    intarsia.convert(tmp_path / "hf-stale", sound, to="hf", max_shard_size=shard)
    sides = (sound, stale) if turned else (stale, sound)
    first, *others = intarsia.verify(*sides).faults
    assert first.kind == "rank-stale"
    assert "__1_0.distcp" in first.text
    assert not any(
        "safetensors" in fault.text for fault in (first, *others) if fault.kind == "rank-stale"
    )

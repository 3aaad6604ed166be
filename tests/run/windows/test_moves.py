"""Windows that are moved from file to file, as far as the process may hold files open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.checkpoints import python

CONVERT = """
import resource, sys
import intarsia
limit, src, out, back = int(sys.argv[1]), *sys.argv[2:]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
intarsia.convert(src, out, to="dcp", mesh="fsdp=64", workers=2)
intarsia.convert(out, back, to="hf", workers=2)
assert intarsia.verify(src, back)
"""


@pytest.mark.parametrize("limit", [48, 96])
@pytest.mark.one_in(2)
def test_a_conversion_of_more_files_than_may_be_open_goes_through_memory(
    tmp_path: Path, limit: int
) -> None:
    chance = np.random.default_rng(0)
    tensors = {f"{k}.w": chance.standard_normal((64, 64)).astype("f4") for k in range(16)}
    save_file(tensors, tmp_path / "model.safetensors")
    words = (tmp_path / "model.safetensors", tmp_path / "dcp", tmp_path / "back")
    ended = python("-c", CONVERT, limit, *words)
    assert ended.returncode == 0, ended.stderr

"""A plain model is loaded and saved without what only sharded ones need: importing that takes a second."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROAD = """
import sys
import torch
import intarsia

x = torch.arange(6.0).reshape(2, 3)
intarsia.save(sys.argv[1], {"w": x})
into = {"w": torch.empty(2, 3)}
intarsia.load(sys.argv[1], into=into)
assert torch.equal(into["w"], x)
print(*(n for n in ("torch.distributed.tensor", "torch.distributed.fsdp") if n in sys.modules))
"""


def test_a_plain_tensor_is_saved_and_loaded_without_torchs_dtensors_and_fsdp(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", ROAD, str(tmp_path / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


def test_what_is_asked_for_twice_is_the_same_function() -> None:
    import intarsia
    from intarsia import live

    assert live.parallelize is live.parallelize is intarsia.parallelize
    assert all(callable(getattr(live, name)) for name in live.__all__)

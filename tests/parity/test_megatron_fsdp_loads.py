"""What we write, loaded by Megatron-core's own Megatron-FSDP code on CPUs with gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import environment, fixture, read_hf
from tests.live.megatron_fsdp_cases import hf_with_optimizer, to_fsdp

pytestmark = [pytest.mark.slow, pytest.mark.megatron]


@pytest.mark.parametrize(
    ("family", "written", "ranks", "tp", "ep"),
    [
        ("qwen3", "fsdp=4", 4, 2, 1),
        ("qwen3", "tp=2,fsdp=2", 2, 1, 1),
        ("qwen3_moe", "ep=2,fsdp=2", 4, 2, 4),
        ("qwen3_moe", "ep=4", 4, 1, 2),
    ],
)
def test_weights_and_optimizer_load_on_another_mesh(
    family: str, written: str, ranks: int, tp: int, ep: int, tmp_path: Path
) -> None:
    """Some ranks hold nothing of some parameters, on either side."""
    source = fixture(family)
    config = json.loads((source / "config.json").read_text())
    model = {name: x.bfloat16() for name, x in read_hf(source).items()}
    hf = hf_with_optimizer(tmp_path / "hf", model, config)
    to_fsdp(hf, tmp_path / "fsdp", written, spec="local")
    folder = next((tmp_path / "fsdp").glob("iter_*"))
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += ["--standalone", "-m", "tests.live.megatron_fsdp_worker"]
    done = subprocess.run(
        [*command, str(folder), str(hf), str(tp), str(ep)],
        env=environment(CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    filled, splits, empty = map(int, (folder / "done").read_text().split())
    assert filled
    assert splits
    assert empty

"""Real Megatron-core: it loads what we write, with Transformers' logits; we read what it saves."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from intarsia.checkpoint import Checkpoint
from tests.checkpoints import ROOT, environment
from tests.parity.megatron_writing import read, write_torch_dist
from tests.versions import newer_than_pinned, pins

pytestmark = pytest.mark.megatron

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "vocab_size": 99,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


@dataclass
class Model:
    """A random Transformers model in a folder, with the logits of some tokens."""

    folder: Path
    logits: torch.Tensor
    ids: Path

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return found


def make(folder: Path, kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Model:
    if kind == "qwen3":
        config = transformers.Qwen3Config(**SIZES | changes)
    else:
        config = transformers.Qwen3MoeConfig(**SIZES | EXPERTS | changes, norm_topk_prob=True)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
        ids = torch.randint(0, SIZES["vocab_size"], (2, 12))
        logits = model(ids).logits
    model.save_pretrained(folder)
    torch.save(ids, folder / "ids.pt")
    return Model(folder, logits, folder / "ids.pt")


def launch(module: str, ranks: int, *words: object) -> None:
    """Run a module once per rank and wait for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        shared = {
            "WORLD_SIZE": str(ranks),
            "MEETING_FILE": f"{folder}/meeting",
            "PYTHONWARNINGS": "ignore",
        }
        running = [
            subprocess.Popen(
                [sys.executable, "-m", module, *map(str, words)],
                env=environment(**shared) | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            said = [process.communicate(timeout=280)[0] for process in running]
        finally:
            for process in running:
                process.kill()
    failed = [text for process, text in zip(running, said, strict=True) if process.returncode]
    assert not failed, failed[0][-3000:]


def iteration(path: Path) -> Path:
    (found,) = path.glob("iter_*")
    return found


def check_logits(tmp_path: Path, kind: str, tp: int, pp: int, ep: int, written: str) -> None:
    model = make(tmp_path / "hf", kind)
    write_torch_dist(model.folder, tmp_path / "td", written, spec="local")
    words = (iteration(tmp_path / "td"), model.folder / "config.json", model.ids, tmp_path / "out")
    launch("tests.parity.megatron_logits", tp * pp, *words, tp, pp, ep)
    torch.testing.assert_close(torch.load(tmp_path / "out"), model.logits, atol=2e-6, rtol=0)


@pytest.mark.skipif(
    newer_than_pinned("torch") and version("megatron-core") == pins()["megatron-core"],
    reason="the pinned Megatron-core gives strides, which later versions of torch store, to torch.empty",
)
def test_a_model_of_experts(tmp_path: Path) -> None:
    check_logits(tmp_path, "qwen3_moe", 1, 1, 1, "tp=2,ep=2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tp", "pp", "ep", "written"),
    [
        *((kind, 1, 1, 1, "tp=4,pp=2") for kind in ("qwen3", "qwen3_moe")),
        *((kind, 2, 1, 1, "") for kind in ("qwen3", "qwen3_moe")),
        *((kind, 2, 2, 1, "tp=2,pp=2") for kind in ("qwen3", "qwen3_moe")),
        ("qwen3_moe", 2, 1, 2, "tp=2,ep=2"),
    ],
)
def test_models_on_several_meshes(
    tmp_path: Path, kind: str, tp: int, pp: int, ep: int, written: str
) -> None:
    check_logits(tmp_path, kind, tp, pp, ep, written)


def check_training(
    tmp_path: Path,
    kind: str,
    ranks: int,
    tp: int,
    pp: int,
    ep: int,
    sharding: str,
    bucket: int,
    **changes: Any,
) -> None:
    model = make(tmp_path / "hf", kind, torch.bfloat16, vocab_size=100, **changes)
    write_torch_dist(model.folder, tmp_path / "td", "", spec="local")
    words = (
        iteration(tmp_path / "td"),
        model.folder / "config.json",
        tmp_path / "run" / "iter_0000007",
    )
    launch("tests.parity.megatron_training", ranks, *words, sharding, bucket, tp, pp, ep)
    with (
        Checkpoint(read(tmp_path / "run", model.config)) as found,
        Checkpoint(read(model.folder)) as source,
    ):
        assert len(found) == 5 * len(source)
        for name in source:
            weight = source[name][...]
            main = weight.float() * (1 + 2**-12)
            assert torch.equal(found[name][...], weight), name
            assert torch.equal(found[f"optimizer.master.{name}"][...], main), name
            assert torch.equal(found[f"optimizer.exp_avg.{name}"][...], main * 0.25), name
            assert torch.equal(found[f"optimizer.exp_avg_sq.{name}"][...], main * main), name
            assert found[f"optimizer.step.{name}"][...] == 3.0, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "tp", "pp", "ep", "bucket"),
    [(2, 1, 1, 1, 0), (2, 2, 1, 2, 0), (8, 2, 2, 2, 3000)],
)
def test_experts_in_buckets(
    tmp_path: Path, ranks: int, tp: int, pp: int, ep: int, bucket: int
) -> None:
    check_training(tmp_path, "qwen3_moe", ranks, tp, pp, ep, "dp_reshardable", bucket)


@pytest.mark.slow
def test_a_tied_head_in_buckets(tmp_path: Path) -> None:
    check_training(tmp_path, "qwen3", 4, 2, 2, 1, "dp_reshardable", 0, tie_word_embeddings=True)


@pytest.mark.slow
def test_state_by_parameter(tmp_path: Path) -> None:
    check_training(tmp_path, "qwen3_moe", 4, 2, 1, 2, "fully_reshardable", 0)

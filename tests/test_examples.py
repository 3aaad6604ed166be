"""The examples, run as a user runs them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

import intarsia

ROOT = Path(__file__).resolve().parent.parent


def run(script: str, *given: str | Path, ranks: int = 1) -> str:
    """What an example prints, alone or under torchrun."""
    command = [sys.executable, str(ROOT / "examples" / script), *map(str, given)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    if ranks > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run"]
        command = [*launcher, f"--nproc-per-node={ranks}", f"--master-port={port}", *command[1:]]
    env = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": port,
    }
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def losses(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss ([\d.]+)", text)]


def test_a_training_goes_on_on_another_mesh(tmp_path: Path) -> None:
    straight = losses(run("train_and_resume.py", tmp_path / "straight", "--steps", "6"))
    first = losses(run("train_and_resume.py", tmp_path / "run", "--steps", "4", ranks=2))
    then = losses(
        run("train_and_resume.py", tmp_path / "run", "--steps", "2", "--tp", "2", ranks=2)
    )
    assert first + then == pytest.approx(straight, rel=1e-5)
    assert (tmp_path / "run" / "latest").read_text() == "step-6\n"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=64, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=6, max_position_embeddings=64,
        tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder / "hf")
    intarsia.convert(folder / "hf", folder / "torch_dist", to="torch_dist", mesh={"tp": 2})
    return folder


@pytest.mark.slow
def test_ranks_generate_the_text_of_one_process(checkpoint: Path) -> None:
    alone = run("load_and_generate.py", checkpoint / "hf", "--prompt", "5 9 2")
    text = alone.split("generated:")[1]
    ranks = run(
        "load_and_generate.py", checkpoint / "torch_dist", "--prompt", "5 9 2", "--tp", "2", ranks=4
    )
    assert ranks.split("generated:")[1] == text
    model = AutoModelForCausalLM.from_pretrained(checkpoint / "hf", dtype=torch.float32)
    ids = torch.tensor([[5, 9, 2]])
    with torch.no_grad():
        truth = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=16,
            min_new_tokens=16,
            do_sample=False,
            pad_token_id=0,
        )
    assert str(truth[0].tolist()) in text

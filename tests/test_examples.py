"""The examples, run as a user runs them."""

from __future__ import annotations

import os
import re
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

import intarsia
from tests.distributed.ranks import server

ROOT = Path(__file__).resolve().parent.parent


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def run(script: str, *given: str | Path, ranks: int = 1) -> str:
    """What an example prints, alone or under torchrun."""
    command = [sys.executable, str(ROOT / "examples" / script), *map(str, given)]
    port = free_port()
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


def run_forked(script: str, *given: str | Path, ranks: int = 1) -> str:
    """What an example prints in processes that have imported torch and Transformers already."""
    with tempfile.TemporaryDirectory() as folder:
        port, out = free_port(), Path(folder) / "out"
        processes = [
            server.Process(target=_main, args=(script, given, rank, ranks, port, out))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(240)
            assert process.exitcode == 0, process
        return out.read_text()


def _main(
    script: str, given: Sequence[str | Path], rank: int, ranks: int, port: str, out: Path
) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_PORT": port}
    torch.set_num_threads(1)
    sys.argv = [script, *map(str, given)]
    with (out if rank == 0 else Path(os.devnull)).open("w") as said, redirect_stdout(said):
        runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")


def losses(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss ([\d.]+)", text)]


@pytest.mark.parametrize(
    "start", [run_forked, pytest.param(run, marks=pytest.mark.slow)], ids=["forked", "torchrun"]
)
def test_a_training_goes_on_on_another_mesh(start: Callable[..., str], tmp_path: Path) -> None:
    script = "train_and_resume.py"
    straight = losses(start(script, tmp_path / "straight", "--steps", "6"))
    first = losses(start(script, tmp_path / "run", "--steps", "4", ranks=2))
    then = losses(start(script, tmp_path / "run", "--steps", "2", "--tp", "2", ranks=2))
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

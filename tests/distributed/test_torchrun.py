"""A conversion shared by several processes: the same bytes, and all fail if one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import (
    ROOT,
    files_of,
    leftovers,
    llama_config,
    model,
    python,
    random_tensor,
    write_hf,
)

CONFIG = llama_config()

PATCH = """
import os

if os.environ.get("RANK"):
    os.environ["LOCAL_WORLD_SIZE"] = os.environ.get("RANKS_HERE", os.environ["LOCAL_WORLD_SIZE"])
    from intarsia.run.budget import Budget

    Budget.window_bytes = Budget.step_bytes = property(lambda self: 2048)
if os.environ.get("RANK") == os.environ.get("BROKEN_RANK", "none"):
    honest, count = os.pwritev, [0]

    def full(*arguments):
        count[0] += 1
        if count[0] > 4:
            raise OSError(28, os.strerror(28))
        return honest(*arguments)

    os.pwritev = full
if os.environ.get("RANK") == os.environ.get("DYING_RANK", "none"):
    honest, count = os.pwritev, [0]

    def dies(*arguments):
        count[0] += 1
        if count[0] > 12:
            os.kill(os.getpid(), 9)
        return honest(*arguments)

    os.pwritev = dies
if os.environ.get("RANK") == os.environ.get("LATE_RANK", "none"):
    from intarsia.conversion import running

    honest_commit = running.Staging.commit

    def commits_and_dies(staging):
        honest_commit(staging)
        os.kill(os.getpid(), 9)

    running.Staging.commit = commits_and_dies
    if os.environ["RANK"] != "0":
        running._committed = lambda *_: os.kill(os.getpid(), 9)
"""
"""Small windows, so that every rank has work; ranks as if on several machines; one rank whose disk is
full, or one that is killed: while it moves bytes, or when all that it was to do is done."""


@pytest.fixture
def src(tmp_path: Path) -> Path:
    extra = {
        "flags": random_tensor((7,), torch.bool),
        "big": random_tensor((90, 70), torch.float32),
    }
    return write_hf(tmp_path / "hf", model(CONFIG) | extra, CONFIG, files=2)


def torchrun(tmp_path: Path, *words: object, ranks: int = 4, **changes: str):
    patch = tmp_path / "patch"
    patch.mkdir(exist_ok=True)
    (patch / "sitecustomize.py").write_text(PATCH)
    path = f"{patch}:{ROOT / 'src'}"
    return python(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, "-m", "intarsia",
        *words, PYTHONPATH=path, **changes,
    )  # fmt: skip


@pytest.mark.parametrize("to", ["dcp", pytest.param("hf", marks=pytest.mark.slow)])
def test_four_processes_write_the_bytes_that_one_writes(src: Path, tmp_path: Path, to: str) -> None:
    words = ["--to", to, "--mesh", "tp=2,fsdp=3", "--max-shard-size", "20kB"]
    done = torchrun(tmp_path, "convert", src, tmp_path / "four", *words)
    assert done.returncode == 0, done.stderr[-4000:]
    intarsia.convert(
        src, tmp_path / "one", to=to, mesh="tp=2,fsdp=3", max_shard_size="20kB", workers=1
    )
    assert files_of(tmp_path / "four") == files_of(tmp_path / "one")
    assert done.stdout.count("done     ") == 1, "only the first rank speaks"
    assert not leftovers(tmp_path)


def two_processes(
    tmp_path: Path, file: str, code: str, *words: object, **changes: str
) -> list[tuple[int, str]]:
    """How a command ended on two processes as torchrun starts them, with a module of ours before all others."""
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / file).write_text(code)
    job = {"PYTHONPATH": f"{tmp_path / 'patch'}:{ROOT / 'src'}", "TORCHELASTIC_RUN_ID": str(tmp_path),
           "MASTER_ADDR": "localhost", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "intarsia", *map(str, words)],
            env={**os.environ, **job, **changes, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=60)[1] for rank in ranks]
    return [(rank.returncode, said) for rank, said in zip(ranks, told, strict=True)]


def test_ranks_of_one_machine_need_no_torch(src: Path, tmp_path: Path) -> None:
    no_torch = "raise ImportError('torch is not wanted')"
    words = ["convert", src, tmp_path / "two", "--to", "dcp"]
    assert two_processes(tmp_path, "torch.py", no_torch, *words) == [(0, ""), (0, "")]
    intarsia.convert(src, tmp_path / "one", to="dcp", workers=1)
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_dies_when_its_work_is_done_hides_no_commit(
    src: Path, tmp_path: Path, late: int
) -> None:
    out = tmp_path / "out"
    words = ["convert", src, out, "--to", "dcp"]
    ended = two_processes(tmp_path, "sitecustomize.py", PATCH, *words, LATE_RANK=str(late))
    assert ended[late] == (-9, "")
    status, said = ended[1 - late]
    assert status == 2
    assert "lost the connection" in said
    assert f"{out} is complete and in its place" in said
    assert intarsia.verify(src, out)
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("broken", [pytest.param("0", marks=pytest.mark.slow), "2"])
def test_a_rank_that_fails_fails_all_and_commits_nothing(
    src: Path, tmp_path: Path, broken: str
) -> None:
    done = torchrun(
        tmp_path, "convert", src, tmp_path / "out", "--to", "dcp", ranks=3, BROKEN_RANK=broken
    )
    assert done.returncode != 0
    assert "No space left on device" in done.stderr
    assert f"rank {broken} failed, so rank 1 stops too" in done.stderr
    assert "run again with --resume" in done.stderr
    assert not (tmp_path / "out").exists()
    report = intarsia.convert(src, tmp_path / "out", to="dcp", resume=True)
    assert "resumed: " in str(report)
    assert intarsia.verify(src, tmp_path / "out")
    assert not leftovers(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [{}, {"RANKS_HERE": "1"}], ids=["one", "several"])
def test_a_job_whose_ranks_were_killed_is_resumed_by_another_number_of_ranks(
    src: Path, tmp_path: Path, machine: dict[str, str]
) -> None:
    words = ["convert", src, tmp_path / "out", "--to", "dcp", "--mesh", "tp=2,fsdp=3"]
    killed = torchrun(tmp_path, *words, ranks=3, DYING_RANK="1", **machine)
    assert killed.returncode != 0
    assert not (tmp_path / "out").exists()
    assert leftovers(tmp_path)
    done = torchrun(tmp_path, *words, "--resume", ranks=2, **machine)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "resumed: " in done.stdout
    assert "resumed: 0 " not in done.stdout
    intarsia.convert(src, tmp_path / "one", to="dcp", mesh="tp=2,fsdp=3")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")
    assert not leftovers(tmp_path)


@pytest.mark.slow
def test_a_destination_that_exists_is_refused_by_all(src: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("data")
    done = torchrun(tmp_path, "convert", src, out, "--to", "dcp", ranks=2)
    assert done.returncode != 0
    assert files_of(out) == {"precious": b"data"}
    assert not leftovers(tmp_path)

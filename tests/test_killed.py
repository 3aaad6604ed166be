"""Runs that die: killed in the middle, or out of space.  The destination is whole or absent."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import (
    assert_same,
    environment,
    files_of,
    half_way,
    leftovers,
    llama_config,
    model,
    python,
    read_dcp,
    read_hf,
    write_hf,
)
from tests.checkpoints import intarsia as cli

CONFIG = llama_config()


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "hf", model(CONFIG), CONFIG)


@pytest.mark.parametrize("to", ["dcp", "hf"])
def test_a_killed_run_leaves_no_destination_and_the_next_succeeds(
    src: Path, tmp_path: Path, to: str
) -> None:
    out = tmp_path / "out"
    child = half_way("convert", src, out, "--to", to)
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert not out.exists()
    assert leftovers(tmp_path), "it was killed too early to prove anything"
    assert cli("convert", src, out, "--to", to).status == 0
    assert_same(read_dcp(out) if to == "dcp" else read_hf(out), model(CONFIG))
    assert not leftovers(tmp_path)


def test_a_killed_overwrite_keeps_the_old(src: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    intarsia.convert(src, out, to="dcp", mesh="tp=2")
    before = files_of(out)
    child = half_way("convert", src, out, "--to", "hf", "--overwrite")
    child.kill()
    child.communicate()
    assert files_of(out) == before
    assert cli("convert", src, out, "--to", "hf", "--overwrite").status == 0
    assert_same(read_hf(out), model(CONFIG))
    assert not leftovers(tmp_path)


def test_two_runs_into_one_destination_do_not_mix(src: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = half_way("convert", src, out, "--to", "dcp")
    try:
        second = cli("convert", src, out, "--to", "dcp")
        assert second.status == 2
        assert "another process is writing" in second.err
    finally:
        first.kill()
        first.communicate()
    assert not out.exists()


def test_a_source_that_shrinks_while_it_is_read_is_an_error(src: Path, tmp_path: Path) -> None:
    child = half_way("convert", src, tmp_path / "out", "--to", "dcp", "--workers", "1")
    os.truncate(src / "model.safetensors", 12_000)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 2
    assert "model.safetensors changed while it was read" in err
    assert "12,000 bytes" in err
    assert not (tmp_path / "out").exists()
    assert not leftovers(tmp_path)


def big(folder: Path) -> Path:
    return write_hf(folder, {f"w{k}": torch.ones(256, 1024) for k in range(8)})


@pytest.mark.parametrize("warned", [True, False])
def test_a_full_disk_fails_and_commits_nothing(
    disk: Path, tmp_path: Path, monkeypatch, warned: bool
) -> None:
    """With and without the look at the free space before the first byte."""
    src = big(tmp_path / "src")
    if not warned:
        import shutil

        plenty = shutil.disk_usage("/")._replace(free=1 << 60)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: plenty)
    answer = cli("convert", src, disk / "out", "--to", "dcp", "--mesh", "fsdp=2")
    assert answer.status == 2
    assert ("are free" if warned else "No space left on device") in answer.err
    assert "free some space" in answer.err
    assert not (disk / "out").exists()
    assert ("--resume" in answer.err) == bool(leftovers(disk))


LIMITED = """
import resource, signal, sys
from intarsia.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, resource.RLIM_INFINITY))
main(sys.argv[1:])
"""


def test_a_file_that_may_not_grow_fails_and_commits_nothing(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    src = big(tmp_path / "src")
    done = python(
        "-c", LIMITED, "convert", src, tmp_path / "out", "--to", "dcp", "--mesh", "fsdp=2"
    )
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["src"]


@pytest.mark.slow
def test_a_large_run_killed_at_any_time_leaves_the_destination_whole_or_absent(
    tmp_path: Path,
) -> None:
    tensors = {f"w{k}": torch.randn(1024, 1024) for k in range(50)}
    src = write_hf(tmp_path / "src", tensors)
    words = [
        sys.executable,
        "-m",
        "intarsia",
        "convert",
        str(src),
        str(tmp_path / "out"),
        "--to",
        "dcp",
    ]
    outcomes = set()
    for tenths in range(2, 40, 3):
        child = subprocess.Popen(
            [*words, "--overwrite"], env=environment(), stdout=subprocess.DEVNULL
        )
        time.sleep(tenths / 10)
        child.kill()
        child.wait()
        outcomes.add((tmp_path / "out").exists())
        if (tmp_path / "out").exists():
            assert intarsia.verify(src, tmp_path / "out")
    assert False in outcomes
    done = python(*words[1:], "--overwrite")
    assert done.returncode == 0
    assert_same(read_dcp(tmp_path / "out"), tensors)

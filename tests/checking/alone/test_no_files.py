"""Data files that end before their chunks, and folders and pipes that have the names of files, are named as such."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import copytree

import pytest

import intarsia
from tests.checkpoints import intarsia as command
from tests.fixtures import fixture

RUNS = ("td_dense_tp2", "td_moe_tp2pp2ep2", "fd_dense_tp2_fsdp2")
TRACKER = "latest_checkpointed_iteration.txt"


def copied(run: str, to: Path) -> Path:
    """The iteration alone, in a run folder of its own."""
    src = fixture("megatron", run)
    to.mkdir()
    (to / TRACKER).write_bytes((src / TRACKER).read_bytes())
    copytree(src / "iter_0000010", to / "iter_0000010")
    return to / "iter_0000010"


def spoil(path: Path, how: str) -> None:
    if how == "cut":
        os.truncate(path, 3000)
        return
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "empty":
        path.touch()


@pytest.mark.parametrize("how", ["cut", "empty", "folder", "pipe", "absent"])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.one_in(9)
def test_a_data_file_that_ends_before_its_chunks_or_is_none_is_named(
    run: str, how: str, tmp_path: Path
) -> None:
    src = copied(run, tmp_path / "run")
    for file in sorted(src.glob("*.distcp")):
        bad = Path(copytree(src, tmp_path / file.name))
        spoil(bad / file.name, how)
        kind = "file-too-short" if how in ("cut", "empty") else "file-missing"
        faults = intarsia.verify(bad).faults
        assert [f.kind for f in faults if file.name in f.where][:1] == [kind], faults
        assert command("verify", bad, src).status == 2


@pytest.mark.parametrize("how", ["empty", "folder", "pipe", "absent"])
@pytest.mark.parametrize("run", RUNS)
def test_metadata_that_is_no_file_is_that_of_a_save_that_did_not_finish(
    run: str, how: str, tmp_path: Path
) -> None:
    src = copied(run, tmp_path / "run")
    spoil(src / ".metadata", how)
    said = {"empty": "is empty", "folder": "is no file", "pipe": "is no file", "absent": "and no"}
    for path in (src, src.parent):
        answer = command("verify", path, "--json")
        assert answer.status == 1
        (fault,) = answer.json["faults"]
        assert fault["kind"] == "metadata-missing"
        assert said[how] in fault["text"]


@pytest.mark.parametrize("how", ["folder", "pipe"])
def test_a_tracker_that_is_no_file_names_no_iteration(how: str, tmp_path: Path) -> None:
    run = copied(RUNS[0], tmp_path / "run").parent
    spoil(run / TRACKER, how)
    (fault,) = intarsia.verify(run).faults
    assert (fault.kind, fault.where) == ("malformed", TRACKER)

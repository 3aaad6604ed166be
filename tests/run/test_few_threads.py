"""Where the system gives few threads, or none (`ulimit -u`, a container's pids), those that there are do the work."""

from __future__ import annotations

import errno
import os
import threading
from itertools import count
from pathlib import Path

import pytest

import intarsia
from intarsia.errors import StoreError
from intarsia.run.journal import keeping
from intarsia.run.sharing import share_out
from intarsia.store.writing.staging import Staging
from tests.checkpoints import files_of, leftovers, llama_config, model, write_hf

CONFIG = llama_config()


@pytest.fixture(params=[0, 1, 2])
def _few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads start only so often."""
    honest, starts = threading.Thread.start, count()

    def start(self: threading.Thread) -> None:
        if next(starts) >= request.param:
            raise RuntimeError("can't start new thread")
        honest(self)

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.usefixtures("_few")
def test_work_is_done_by_the_threads_that_there_are() -> None:
    assert share_out(range(50), 4, lambda n: n * n) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        share_out([1, 0, 1], 4, lambda n: 1 // n)


@pytest.mark.usefixtures("_few")
def test_a_conversion_arrives_with_its_marks_and_syncs(tmp_path: Path, monkeypatch) -> None:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    honest, marks = keeping.Journal._mark, list[keeping.Journal]()
    monkeypatch.setattr(keeping, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(keeping.Journal, "_mark", lambda self: (marks.append(self), honest(self)))
    intarsia.convert(src, tmp_path / "out", to="dcp", mesh="fsdp=40", workers=4)
    assert intarsia.verify(src, tmp_path / "out", workers=4)
    assert marks
    assert not leftovers(tmp_path)
    monkeypatch.undo()
    intarsia.convert(src, tmp_path / "again", to="dcp", mesh="fsdp=40")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "out")


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("rank", range(4))
def test_a_sync_that_fails_fails_the_commit_all_the_same(
    tmp_path: Path, monkeypatch, rank: int
) -> None:
    """The kernel tells it once."""
    honest, told = os.fsync, list[str]()

    def fsync(fd: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        told.append(name)
        if name == f"f{rank}" and told.count(name) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        honest(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    staging = Staging(tmp_path / "out")
    staging.begin()
    for k in range(60):
        staging.write_small(f"f{k}", b"data")
    with pytest.raises(StoreError, match=f"f{rank}: Input/output error"):
        staging.commit()
    assert not (tmp_path / "out").exists()
    assert not staging.abandon(keep=True)

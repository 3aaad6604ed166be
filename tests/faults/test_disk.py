"""A disk that refuses, and a source that moves under the reader: one clear error, nothing half-valid."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import intarsia
import intarsia.converting
from intarsia.errors import FormatError, StoreError
from intarsia.store.reading.folder import Folder
from intarsia.store.writing.staging import Staging
from tests.budgets import in_steps_of
from tests.checkpoints import (
    assert_same,
    environment,
    files_of,
    leftovers,
    llama_config,
    model,
    read_dcp,
    write_hf,
)
from tests.checkpoints import intarsia as cli

CONFIG = llama_config()
OPTIONS = {"to": "dcp", "mesh": "tp=2"}
KEPT = [".out.intarsia-journal", ".out.intarsia-partial"]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    in_steps_of(monkeypatch, 2048)


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "hf", model(CONFIG), CONFIG, files=2)


def fails_at(call: int, number: int, honest: Callable[..., int]) -> Callable[..., int]:
    """A system call that fails once, when its turn comes."""
    lock, count = threading.Lock(), [0]

    def fails(*arguments: object) -> int:
        with lock:
            count[0] += 1
            if count[0] == call:
                raise OSError(number, os.strerror(number))
        return honest(*arguments)

    return fails


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_write_that_fails_fails_the_run_which_can_be_resumed(
    src: Path, tmp_path: Path, monkeypatch, number: int, workers: int
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", fails_at(12, number, os.pwritev))
        with pytest.raises(StoreError) as raised:
            intarsia.convert(src, out, workers=workers, **OPTIONS)
    told = str(raised.value)
    assert os.strerror(number) in told
    assert ".distcp" in told
    assert "are kept in" in told
    assert "run again with --resume" in told
    assert "free some space" in told
    assert not out.exists()
    assert leftovers(tmp_path) == KEPT
    assert "resumed" in str(intarsia.convert(src, out, resume=True, **OPTIONS))
    assert_same(read_dcp(out), model(CONFIG))
    assert not leftovers(tmp_path)


def test_the_first_write_that_fails_leaves_nothing(src: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "pwritev", fails_at(1, errno.ENOSPC, os.pwritev))
    with pytest.raises(StoreError, match="No space left") as raised:
        intarsia.convert(src, tmp_path / "out", workers=1, **OPTIONS)
    assert "--resume" not in str(raised.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf"]


@pytest.mark.parametrize("file", ["config.json", ".metadata"])
def test_a_disk_that_is_full_at_the_closing_files_is_resumed_from_there(
    src: Path, tmp_path: Path, monkeypatch, file: str
) -> None:
    out = tmp_path / "out"
    honest = Staging.create

    def full(self: Staging, name: str, size: int, **options: object) -> None:
        if name == file:
            raise StoreError(f"{self.folder / name}: No space left on device", hint="free some")
        honest(self, name, size, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "create", full)
        with pytest.raises(StoreError, match=f"{file}: No space left on device"):
            intarsia.convert(src, out, **OPTIONS)
    assert not out.exists()
    assert leftovers(tmp_path) == KEPT
    report = intarsia.convert(src, out, resume=True, **OPTIONS)
    assert f"resumed: {_human(report)} were there already" in str(report)
    assert_same(read_dcp(out), model(CONFIG))


def _human(report: intarsia.conversion.report.Report) -> str:
    from intarsia.quantity import human

    return human(report.plan.write_bytes)


@pytest.mark.parametrize(("call", "number"), [("pwritev", 9), ("fsync", 2)])
def test_a_disk_that_breaks_commits_nothing_and_nothing_of_it_is_believed(
    src: Path, tmp_path: Path, monkeypatch, call: str, number: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails_at(number, errno.EIO, getattr(os, call)))
        with pytest.raises(StoreError, match=r"distcp: Input/output error") as raised:
            intarsia.convert(src, tmp_path / "out", **OPTIONS)
    assert "--resume" not in str(raised.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf"]


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_short_writes_and_reads_are_continued(src, tmp_path, monkeypatch, call: str) -> None:
    honest = getattr(os, call)
    monkeypatch.setattr(
        os, call, lambda fd, views, at: honest(fd, [memoryview(views[0]).cast("B")[:37]], at)
    )
    intarsia.convert(src, tmp_path / "out", **OPTIONS)
    monkeypatch.undo()
    assert_same(read_dcp(tmp_path / "out"), model(CONFIG))


def test_a_read_that_fails_names_the_file(src: Path, tmp_path: Path, monkeypatch) -> None:
    job = intarsia.converting.job(src, intarsia.Options(**OPTIONS))
    monkeypatch.setattr(os, "preadv", fails_at(9, errno.EIO, os.preadv))
    with pytest.raises(StoreError, match=r"model-.*safetensors: Input/output error"):
        intarsia.conversion.running.carry_out(job, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"new!")


def replace(path: Path) -> None:
    data = path.read_bytes()
    path.with_name("new").write_bytes(data)
    path.with_name("new").rename(path)


@pytest.mark.parametrize("change", [truncate, rewrite, replace, Path.unlink])
def test_a_source_that_changes_while_it_is_read_is_an_error_that_names_it(
    src: Path, tmp_path: Path, monkeypatch, change: Callable[[Path], None]
) -> None:
    victim = sorted(src.glob("model-*.safetensors"))[-1]
    honest, count = Staging.write, [0]

    def write(self: Staging, *arguments: object) -> None:
        count[0] += 1
        if count[0] == 6:
            change(victim)
        honest(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Staging, "write", write)
    with pytest.raises(FormatError, match=victim.name) as raised:
        intarsia.convert(src, tmp_path / "out", workers=1, **OPTIONS)
    if change in (rewrite, replace):
        assert "changed while it was read" in str(raised.value)
        assert "convert again when nothing writes to it" in str(raised.value)
    assert not (tmp_path / "out").exists()
    assert not leftovers(tmp_path), "half of it is of another source"


def test_a_source_that_changes_between_plan_and_run_is_an_error(src: Path, tmp_path: Path) -> None:
    job = intarsia.converting.job(src, intarsia.Options(**OPTIONS))
    rewrite(next(src.glob("model-*.safetensors")))
    with pytest.raises(FormatError, match="changed while it was read"):
        intarsia.conversion.running.carry_out(job, tmp_path / "out")
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("error", [ValueError, MemoryError, KeyboardInterrupt])
def test_whatever_a_worker_raises_fails_the_whole(src, tmp_path, monkeypatch, error) -> None:
    honest, count, lock = Folder.read_into, [0], threading.Lock()

    def breaks(self: Folder, *arguments: object) -> None:
        with lock:
            count[0] += 1
            broken = count[0] == 15
        if broken:
            raise error("in a thread")
        honest(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Folder, "read_into", breaks)
    with pytest.raises(error, match="in a thread"):
        intarsia.convert(src, tmp_path / "out", workers=4, **OPTIONS)
    assert not (tmp_path / "out").exists()


def test_a_destination_that_is_read_only_is_refused_at_once(src: Path, disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    answer = cli("convert", src, disk / "out", "--to", "dcp")
    assert answer.status == 2
    assert f"{disk}: Read-only file system" in answer.err
    assert "choose a destination that you may write to" in answer.err


def test_a_disk_that_runs_full_is_resumed_when_there_is_room(
    disk: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.undo()
    src = write_hf(tmp_path / "src", {f"w{k}": torch.randn(128, 1024) for k in range(4)})
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(2_500_000))
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: Plenty)
        answer = cli("convert", src, disk / "out", "--to", "dcp", "--mesh", "fsdp=2")
    assert answer.status == 2
    assert "No space left on device" in answer.err
    assert "run again with --resume" in answer.err
    short = cli("convert", src, disk / "out", "--to", "dcp", "--mesh", "fsdp=2", "--resume")
    assert short.status == 2
    assert "are free" in short.err
    assert leftovers(disk) == KEPT, "too little room is no reason to clear what is there"
    ballast.unlink()
    done = cli("convert", src, disk / "out", "--to", "dcp", "--mesh", "fsdp=2", "--resume")
    assert done.status == 0, done.err
    assert "resumed" in done.out
    assert files_of(disk).keys() == {
        "out/.metadata",
        "out/__0_0.distcp",
        "out/__1_0.distcp",
        "out/intarsia-digests.json",
    }
    assert intarsia.verify(src, disk / "out")


class Plenty:
    """Stands for the answer of a disk with room."""

    free = 1 << 60


def test_a_file_longer_than_may_be_is_told_with_what_to_do(src: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 8; exec "$0" -m intarsia convert "$1" "$2" --to dcp', sys.executable, src,
         tmp_path / "out"],
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert ".distcp: File too large" in done.stderr
    assert "hint: raise the limit of a file's length (`ulimit -f`), or choose" in done.stderr
    assert not leftovers(tmp_path)

"""`--resume`: what it takes up, what it refuses, and what it says."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import intarsia
from intarsia.errors import FormatError, StoreError, UsageError
from intarsia.store.writing.staging import Staging
from tests.budgets import in_steps_of
from tests.checkpoints import (
    assert_same,
    files_of,
    half_way,
    leftovers,
    model,
    read_hf,
    write_hf,
)
from tests.checkpoints import intarsia as cli
from tests.faults.resume.interrupted import CONFIG, OPTIONS, WORDS, Death, die_half_way


def written_by(run, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many bytes a run hands to the kernel for its files."""
    count = [0]
    honest = Staging.write

    def write(self: Staging, file: str, start: int, buffers: list[bytes]) -> None:
        count[0] += sum(len(memoryview(b).cast("B")) for b in buffers)
        honest(self, file, start, buffers)

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "write", write)
        run()
    return count[0]


def test_a_resumed_run_writes_the_rest_and_the_bytes_are_the_same(
    src: Path, tmp_path: Path, whole, monkeypatch
) -> None:
    out = tmp_path / "out"
    before = die_half_way(src, out)
    seen: list[tuple[int, int]] = []

    def resume() -> None:
        report = intarsia.convert(
            src, out, resume=True, progress=lambda *at: seen.append(at), **OPTIONS
        )
        assert "resumed: " in str(report)

    after = written_by(resume, monkeypatch)
    everything = written_by(
        lambda: intarsia.convert(src, tmp_path / "again", **OPTIONS), monkeypatch
    )
    assert files_of(out) == whole
    assert before > 0
    assert everything <= before + after <= 1.05 * everything, "at most the step in hand is redone"
    assert seen[0][0] > 0
    assert seen[-1] == (seen[-1][1], seen[-1][1])
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("window", [64, 1000, 1 << 20])
def test_memory_and_threads_may_differ(src, tmp_path, whole, monkeypatch, window: int) -> None:
    out = tmp_path / "out"
    die_half_way(src, out)
    in_steps_of(monkeypatch, window)
    intarsia.convert(src, out, resume=True, **(OPTIONS | {"workers": 3}))
    assert files_of(out) == whole


def test_with_nothing_to_resume_it_just_runs(src: Path, tmp_path: Path, whole) -> None:
    answer = cli("convert", src, tmp_path / "out", *WORDS, "--resume", "--json")
    assert answer.status == 0
    assert files_of(tmp_path / "out") == whole
    assert answer.json["notes"] == []


def test_without_it_the_run_begins_anew_and_says_what_was_lost(src, tmp_path, whole) -> None:
    die_half_way(src, tmp_path / "out")
    answer = cli("convert", src, tmp_path / "out", *WORDS, "--json")
    assert answer.status == 0
    assert "of an earlier run were removed; --resume would have kept them" in answer.out
    assert files_of(tmp_path / "out") == whole
    assert not leftovers(tmp_path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--to", "dcp", "--mesh", "tp=2"), "--mesh: tp=2,fsdp=3 then, tp=2 now"),
        (("--to", "hf"), "--to: dcp then, hf now"),
        ((*WORDS, "--dtype", "fp32"), "--dtype: not given then, F32 now"),
        ((*WORDS, "--optimizer", "drop"), "--optimizer: keep then, drop now"),
    ],
)
def test_another_job_is_refused_and_told_how_it_differs(src, tmp_path, words, told: str) -> None:
    die_half_way(src, tmp_path / "out")
    before = files_of(tmp_path)
    answer = cli("convert", src, tmp_path / "out", *words, "--resume")
    assert answer.status == 2
    assert told in answer.err
    assert "start again without --resume" in answer.err
    del before[".out.intarsia-lock"]
    assert files_of(tmp_path) == before, "what the first run wrote is left to it"
    assert cli("convert", src, tmp_path / "out", *words).status == 0


def test_a_source_that_was_changed_is_refused_and_named(src: Path, tmp_path: Path) -> None:
    die_half_way(src, tmp_path / "out")
    write_hf(src, model(CONFIG, seed=5), CONFIG)
    answer = cli("convert", src, tmp_path / "out", *WORDS, "--resume")
    assert answer.status == 2
    assert "source file model.safetensors: " in answer.err
    assert not (tmp_path / "out").exists()


def test_a_source_that_was_changed_in_place_is_refused_though_its_times_were_set_back(
    src: Path, tmp_path: Path
) -> None:
    file = src / "model.safetensors"
    then = file.stat()
    die_half_way(src, tmp_path / "out")
    with file.open("r+b") as out:
        out.seek(-40, os.SEEK_END)
        out.write(bytes(40))
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))
    answer = cli("convert", src, tmp_path / "out", *WORDS, "--resume")
    assert answer.status == 2
    assert "source file model.safetensors: " in answer.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("synced", [False, True])
def test_what_was_damaged_in_the_partial_folder_is_written_again(
    src: Path, tmp_path: Path, monkeypatch, synced: bool
) -> None:
    """In a file of nothing but elements, where only their checksum can tell."""
    if synced:
        monkeypatch.setattr("intarsia.run.journal.keeping.LEAST_SECONDS", 0.0)
        monkeypatch.setattr("intarsia.run.journal.keeping.REST", 0)
    out, options = tmp_path / "out", OPTIONS | {"to": "hf"}
    intarsia.convert(src, tmp_path / "whole", **options)
    die_half_way(src, out, at=8, to="hf")
    file = max(Staging(out).folder.iterdir(), key=lambda p: len(p.read_bytes().rstrip(b"\0")))
    data = bytearray(file.read_bytes())
    at = len(data.rstrip(b"\0")) * 3 // 4
    assert any(data[at : at + 64])
    data[at : at + 64] = bytes(64)
    file.write_bytes(data)
    report = intarsia.convert(src, out, resume=True, **options)
    assert "resumed: " in str(report)
    assert "did not match what had been written, and are written again" in str(report)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_another_version_is_refused(src: Path, tmp_path: Path, monkeypatch) -> None:
    die_half_way(src, tmp_path / "out")
    monkeypatch.setattr(intarsia, "__version__", "99")
    with pytest.raises(UsageError, match=r"Intarsia: .* then, 99 now"):
        intarsia.convert(src, tmp_path / "out", resume=True, **OPTIONS)


def test_a_partial_folder_that_someone_replaced_is_not_taken_up(src, tmp_path, whole) -> None:
    """A journal speaks of one folder, whatever now has its name."""
    out = tmp_path / "out"
    die_half_way(src, out)
    partial = Staging(out).folder
    partial.rename(tmp_path / "moved")
    partial.mkdir()
    for name, data in files_of(tmp_path / "moved").items():
        (partial / name).write_bytes(bytes(len(data)))
    report = intarsia.convert(src, out, resume=True, **OPTIONS)
    assert "resumed" not in str(report)
    assert files_of(out) == whole


def test_a_run_killed_after_its_commit_is_done(src, tmp_path, whole, monkeypatch) -> None:
    out = tmp_path / "out"

    def dies(self: Staging) -> None:
        raise Death

    def vanish(self: Staging, *, keep: bool = False) -> None:
        assert self.transaction.lock.fd is not None
        os.close(self.transaction.lock.fd)

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "clear_up", dies)
        patch.setattr(Staging, "abandon", vanish)
        with pytest.raises(Death):
            intarsia.convert(src, out, **OPTIONS)
    assert files_of(out) == whole
    assert leftovers(tmp_path)
    report = intarsia.convert(src, out, resume=True, **OPTIONS)
    assert "an earlier run had finished" in str(report)
    assert files_of(out) == whole
    assert not leftovers(tmp_path)


def test_what_was_replaced_is_never_taken_for_what_was_written(src, tmp_path, monkeypatch) -> None:
    """After an exchange the partial folder is the old destination, of the same sizes."""
    out = tmp_path / "out"
    other = write_hf(tmp_path / "other", model(CONFIG, seed=5), CONFIG)
    intarsia.convert(other, out, **OPTIONS)

    def dies(self: Staging) -> None:
        raise Death

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "clear_up", dies)
        with pytest.raises(Death):
            intarsia.convert(src, out, overwrite=True, **OPTIONS)
    intarsia.convert(src, out, overwrite=True, resume=True, **OPTIONS)
    assert intarsia.verify(src, out)
    assert not leftovers(tmp_path)


def test_a_run_killed_while_it_closes_is_continued(src, tmp_path, whole, monkeypatch) -> None:
    out = tmp_path / "out"

    def dies(_: Staging) -> None:
        raise StoreError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "commit", dies)
        with pytest.raises(StoreError, match="run again with --resume"):
            intarsia.convert(src, out, **OPTIONS)
    after = written_by(lambda: intarsia.convert(src, out, resume=True, **OPTIONS), monkeypatch)
    assert files_of(out) == whole
    assert after < sum(map(len, whole.values())) / 2, "only what closes it is written again"


def test_a_partial_folder_is_no_checkpoint(src: Path, tmp_path: Path) -> None:
    for to in ("hf", "dcp"):
        die_half_way(src, tmp_path / "out", at=6, to=to)
        partial = Staging(tmp_path / "out").folder
        with pytest.raises(FormatError, match="did not finish"):
            intarsia.open(partial)
        partial.rename(tmp_path / f"other-{to}")
        with pytest.raises(FormatError):
            intarsia.open(tmp_path / f"other-{to}")


def test_an_overwrite_is_resumed_too(src: Path, tmp_path: Path, whole) -> None:
    out = write_hf(tmp_path / "out", model(CONFIG, seed=5))
    old = files_of(out)
    die_half_way(src, out, overwrite=True)
    assert files_of(out) == old
    with pytest.raises(UsageError, match="exists"):
        intarsia.convert(src, out, resume=True, **OPTIONS)
    intarsia.convert(src, out, resume=True, overwrite=True, **OPTIONS)
    assert files_of(out) == whole
    assert not leftovers(tmp_path)


def test_an_interrupted_run_is_kept_and_says_so(src: Path, tmp_path: Path, whole) -> None:
    out = tmp_path / "out"
    child = half_way("convert", src, out, *WORDS)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted; nothing was committed" in err
    assert "run again with --resume" in err
    assert "Traceback" not in err
    assert leftovers(tmp_path) == [".out.intarsia-journal", ".out.intarsia-partial"]
    assert "resumed" in cli("convert", src, out, *WORDS, "--resume").out
    assert files_of(out) == whole


def test_a_model_of_many_files_is_resumed(src: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = {"to": "hf", "max_shard_size": "9kB", "mesh": None}
    die_half_way(src, out, at=6, **options)
    intarsia.convert(src, out, resume=True, **(OPTIONS | options))
    assert_same(read_hf(out), model(CONFIG))
    assert len(list(out.glob("model-*.safetensors"))) > 2


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_run_that_is_killed_while_it_clears_up_is_ended_by_resume(
    src: Path, tmp_path: Path, whole, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """At the records, at the head of the journal, and at its folder."""
    out = tmp_path / "out"
    count = [0]

    def dying(honest: Callable[..., None]) -> Callable[..., None]:
        def call(path: object, *more: object, **named: object) -> None:
            beside = named.get("dir_fd") is not None or "intarsia-journal" in str(path)
            if out.exists() and beside:
                count[0] += 1
                if count[0] >= at:
                    raise KeyboardInterrupt
            honest(path, *more, **named)

        return call

    with monkeypatch.context() as patch:
        for name in ("unlink", "rmdir"):
            patch.setattr(os, name, dying(getattr(os, name)))
        answer = cli("convert", src, out, *WORDS)
        assert "interrupted after it was complete: --resume removes" in answer.out
    assert files_of(out) == whole
    assert leftovers(tmp_path)
    again = cli("convert", src, out, *WORDS, "--resume")
    assert again.status == 0 or "there is nothing to resume" in again.err
    assert files_of(out) == whole
    assert not leftovers(tmp_path)

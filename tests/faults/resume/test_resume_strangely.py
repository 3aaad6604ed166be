"""`--resume` of trained models in every format, and of jobs whose traces somebody damaged, moved or doubled."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.checkpoint import FileSystemReader

import intarsia
from intarsia.errors import UsageError
from intarsia.run.journal.keeping import JOB, to_line
from intarsia.store.writing.staging import Staging
from tests.budgets import in_steps_of
from tests.checkpoints import (
    files_of,
    half_way,
    leftovers,
)
from tests.checkpoints import intarsia as cli
from tests.faults.resume.interrupted import OPTIONS, WORDS, die_half_way
from tests.faults.sound import MESHES, Sound


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return Sound.make(tmp_path_factory.mktemp("sound"))


def slow(*given: object) -> object:
    return pytest.param(*given, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("hf", {"to": "torch_dist", "mesh": MESHES["torch_dist"]}),
        ("dcp", {"to": "hf", "mesh": None, "dtype": "fp32", "optimizer": "drop"}),
        slow("dcp", {"to": "hf", "mesh": None, "dtype": "bf16", "max_shard_size": "20kB"}),
        slow("torch_dist", {"to": "fsdp_dtensor", "mesh": "fsdp=3"}),
        slow("fsdp_dtensor", {"to": "dcp", "mesh": "ep=2", "dialect": "hf-module"}),
        slow("torch_dist", {"to": "hf", "mesh": None, "dialect": "hf-module"}),
    ],
)
@pytest.mark.one_in(2)
def test_a_trained_model_killed_on_its_way_arrives(
    sound: Sound, tmp_path: Path, source: str, options: dict[str, object]
) -> None:
    """Optimizer state, casts, other names: before half of the way, and with little left."""
    src, whole = sound.root / source, tmp_path / "whole"
    steps = [0]
    with pytest.MonkeyPatch.context() as patch:
        honest = Staging.write

        def write(self: Staging, *arguments: object) -> None:
            steps[0] += 1
            honest(self, *arguments)  # type: ignore[arg-type]

        patch.setattr(Staging, "write", write)
        intarsia.convert(src, whole, workers=1, **options)  # type: ignore[arg-type]
    for part in (0.4, 0.95):
        out = tmp_path / f"out {part}"
        die_half_way(src, out, at=int(steps[0] * part), **options)
        assert not out.exists()
        report = intarsia.convert(src, out, resume=True, workers=2, **options)  # type: ignore[arg-type]
        assert "resumed: " in str(report)
        assert files_of(out) == files_of(whole)
    assert not leftovers(tmp_path)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda j: flip(j / JOB, 30), "started again: an earlier run left no readable journal"),
        (
            lambda j: os.truncate(j / JOB, 50),
            "started again: an earlier run left no readable journal",
        ),
        (
            lambda j: (j / JOB).write_bytes(b""),
            "started again: an earlier run left no readable journal",
        ),
        (lambda j: (j / JOB).unlink(), "started again: an earlier run left no readable journal"),
        (lambda j: (j / JOB).write_bytes(to_line({"version": 2})), "started again: an earlier run"),
        (lambda j: flip(j / "0-0", 20), "resumed: 0 B were there already"),
        (lambda j: flip(j / "0-0", (j / "0-0").stat().st_size // 2), "resumed: "),
        (lambda j: os.truncate(j / "0-0", (j / "0-0").stat().st_size - 5), "resumed: "),
        (lambda j: (j / "0-0").unlink(), "resumed: 0 B were there already"),
    ],
)
@pytest.mark.one_in(2)
def test_a_damaged_journal_costs_work_and_never_bytes(
    src: Path, tmp_path: Path, whole, harm: Callable[[Path], None], told: str
) -> None:
    out = tmp_path / "out"
    die_half_way(src, out)
    harm(Staging(out).journal)
    answer = cli("convert", src, out, *WORDS, "--resume")
    assert answer.status == 0, answer.err
    assert told in answer.out
    assert files_of(out) == whole
    assert not leftovers(tmp_path)


def test_partial_files_that_somebody_damaged_are_written_again(src, tmp_path, whole) -> None:
    out = tmp_path / "out"
    die_half_way(src, out)
    victim = sorted(Staging(out).folder.glob("*.distcp"))[0]
    flip(victim, 700)
    os.truncate(sorted(Staging(out).folder.glob("*.distcp"))[1], 100)
    intarsia.convert(src, out, resume=True, **OPTIONS)
    assert files_of(out) == whole


@pytest.mark.parametrize("step_bytes", [8192, 256])  # archives whole, and in stretches
def test_bytes_between_archives_that_somebody_damaged_are_zeros_again(
    src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    """No reader looks there; a file that is written is the same to its last byte all the same."""
    in_steps_of(monkeypatch, step_bytes)
    whole, out = tmp_path / "whole", tmp_path / "out"
    intarsia.convert(src, whole, **OPTIONS)  # type: ignore[arg-type]
    between = {
        path.name: bytearray(b"\x04" * path.stat().st_size) for path in whole.glob("*.distcp")
    }
    for held in FileSystemReader(whole).read_metadata().storage_data.values():
        between[held.relative_path][held.offset : held.offset + held.length] = bytes(held.length)
    assert all(map(any, between.values()))

    die_half_way(src, out)
    for name, flips in between.items():
        path = Staging(out).folder / name
        path.write_bytes(bytes(a ^ b for a, b in zip(path.read_bytes(), flips, strict=True)))
    assert "resumed: " in str(intarsia.convert(src, out, resume=True, **OPTIONS))  # type: ignore[arg-type]
    assert files_of(out) == files_of(whole)


def test_a_partial_folder_that_was_removed_is_said_to_be_gone(src, tmp_path, whole) -> None:
    out = tmp_path / "out"
    die_half_way(src, out)
    subprocess.run(["rm", "-rf", str(Staging(out).folder)], check=True)
    answer = cli("convert", src, out, *WORDS, "--resume")
    assert answer.status == 0, answer.err
    assert (
        "started again: the files that the journal of an earlier run lists are gone" in answer.out
    )
    assert files_of(out) == whole


@pytest.mark.parametrize("holds", ["nothing", "something"])
def test_a_folder_that_got_the_number_of_a_removed_one_is_not_taken_for_finished(
    src: Path, tmp_path: Path, whole, holds: str
) -> None:
    """File systems give numbers of removed folders to new ones, often to the very next."""
    out = tmp_path / "out"
    die_half_way(src, out)
    subprocess.run(["rm", "-rf", str(Staging(out).folder)], check=True)
    out.mkdir()
    if holds == "something":
        (out / "precious").write_text("mine")
    job = Staging(out).journal / JOB
    said = json.loads(job.read_bytes().split(b"\n")[0][9:])
    job.write_bytes(to_line(said | {"folder": out.stat().st_ino}))
    answer = cli("convert", src, out, *WORDS, "--resume")
    if holds == "something":
        assert answer.status == 2
        assert "exists" in answer.err
        assert files_of(out) == {"precious": b"mine"}
    else:
        assert answer.status == 0, answer.err
        assert files_of(out) == whole


def test_a_finished_run_is_told_how_to_make_sure(src: Path, tmp_path: Path, whole) -> None:
    out = tmp_path / "out"
    intarsia.convert(src, out, **OPTIONS)
    answer = cli("convert", src, out, *WORDS, "--resume")
    assert answer.status == 2
    assert f"{out} exists, and there is nothing to resume" in answer.err
    assert "intarsia verify" in answer.err
    assert files_of(out) == whole
    assert not leftovers(tmp_path)


def test_of_two_that_resume_at_once_one_refuses(src: Path, tmp_path: Path, whole) -> None:
    out = tmp_path / "out"
    die_half_way(src, out, at=3)
    first = half_way("convert", src, out, *WORDS, "--resume")
    for more in (("--resume",), ()):
        second = cli("convert", src, out, *WORDS, *more)
        assert second.status == 2
        assert "another process is writing" in second.err
    told, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert "resumed: " in told
    assert files_of(out) == whole
    assert not leftovers(tmp_path)


def test_files_that_somebody_left_in_the_partial_folder_are_no_part_of_the_result(
    src: Path, tmp_path: Path
) -> None:
    """Of two sets of weights a reader may take the other one."""
    out, whole, sharded = tmp_path / "out", tmp_path / "whole", {"max_shard_size": "20kB"}
    intarsia.convert(src, whole, to="hf", **sharded)
    die_half_way(src, out, to="hf", mesh=None, **sharded)
    stray = Staging(out).folder / "model.safetensors"
    stray.write_bytes(b"another's")
    for _ in range(2):
        with pytest.raises(UsageError, match="holds what this run did not write: model"):
            intarsia.convert(src, out, to="hf", resume=True, **sharded)
        assert not out.exists()
        assert stray.read_bytes() == b"another's"
    stray.unlink()
    assert "resumed: " in str(intarsia.convert(src, out, to="hf", resume=True, **sharded))
    assert files_of(out) == files_of(whole)


def test_digests_that_were_written_are_given_up_too(src, tmp_path, whole, monkeypatch) -> None:
    def killed(self: Staging) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "commit", killed)
        assert cli("convert", src, out, *WORDS).status == 130
    assert (Staging(out).folder / "intarsia-digests.json").exists()
    intarsia.convert(src, out, resume=True, digests=False, **OPTIONS)
    del whole["intarsia-digests.json"]
    assert files_of(out) == whole


@pytest.mark.parametrize("first", [True, False])
def test_digests_may_be_asked_for_or_given_up_half_way(
    src: Path, tmp_path: Path, whole: dict[str, bytes], first: bool
) -> None:
    """They follow from the bytes, which are the same with them and without."""
    out = tmp_path / "out"
    die_half_way(src, out, digests=first)
    report = intarsia.convert(src, out, resume=True, digests=not first, **OPTIONS)
    assert "resumed: " in str(report)
    found = files_of(out)
    if first:
        del whole["intarsia-digests.json"]
    assert found == whole
    assert intarsia.verify(out)

"""Files and folders that others cut off, replace or remove while a run goes on."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import intarsia
from intarsia.checking.fault import Fault
from intarsia.errors import ChangedError, IntarsiaError
from intarsia.format.folder import side_files
from intarsia.format.hf import files as hf_files
from intarsia.run.journal import keeping as journal
from intarsia.store.writing.staging import Staging
from tests.budgets import in_steps_of
from tests.checkpoints import leftovers, llama_config, model, python, write_hf

CONFIG = llama_config(num_hidden_layers=1)
OPTIONS = {"to": "dcp", "mesh": "fsdp=2"}

CUT_OFF = """
import os, sys
from intarsia.cli.main import main
from intarsia.checkpoint import Checkpoint

def cut_off_after(honest):
    def read(self, *asked):
        found = honest(self, *asked)
        for name in os.listdir(self.manifest.path):
            os.truncate(os.path.join(self.manifest.path, name), 0)
        return found
    return read

for name in ("read_each", "sums", "sums_of_whole"):
    setattr(Checkpoint, name, cut_off_after(getattr(Checkpoint, name)))
main(sys.argv[1:])
"""
"""A source that is cut off when some of it is read and about to be summed."""


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "hf", model(CONFIG), CONFIG, files=2)


@pytest.mark.parametrize("kernel", ["", "off"])
def test_a_file_that_is_cut_off_while_it_is_summed_is_no_end_by_a_signal(
    src: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    monkeypatch.setenv("INTARSIA_KERNEL", kernel)
    ended = python("-c", CUT_OFF, "digest", src, "--workers", "1")
    assert ended.returncode == 2, (ended.returncode, ended.stderr)
    assert "safetensors changed while it was read" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("what", ["parent", "partial", "journal"])
def test_a_folder_that_somebody_removes_ends_the_run_with_its_name(
    src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, at: int
) -> None:
    out = tmp_path / "disk" / "out"
    honest, count = Staging.write, [0]

    def write(self: Staging, *arguments: object) -> None:
        count[0] += 1
        if count[0] == at:
            gone = {"parent": out.parent, "partial": self.folder, "journal": self.journal}[what]
            shutil.rmtree(gone)
        honest(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        in_steps_of(patch, 2048)
        patch.setattr(Staging, "write", write)
        patch.setattr(journal, "LEAST_SECONDS", 0.0)
        patch.setattr(journal, "REST", 0)
        if what == "journal":  # a run that is killed needs it, and no other
            intarsia.convert(src, out, workers=1, **OPTIONS)
        else:
            with pytest.raises(IntarsiaError, match=str(out.parent)):
                intarsia.convert(src, out, workers=1, **OPTIONS)
            assert not out.exists()
    if not out.exists():
        intarsia.convert(src, out, **OPTIONS)
    assert intarsia.verify(src, out)
    assert not leftovers(out.parent)


@pytest.mark.parametrize(
    "file", ["intarsia-digests.json", "config.json", ".metadata", "__0_0.distcp"]
)
def test_a_disk_that_fills_at_any_of_the_files_is_told_and_resumed(
    src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    out = tmp_path / "out"
    honest = os.pwritev

    def full(fd: int, *arguments: object) -> int:
        if Path(os.readlink(f"/proc/self/fd/{fd}")).name == file:
            raise OSError(28, os.strerror(28))
        return honest(fd, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(IntarsiaError, match=f"{file}: No space left on device"):
            intarsia.convert(src, out, **OPTIONS)
    assert not out.exists()
    intarsia.convert(src, out, resume=True, **OPTIONS)
    assert intarsia.verify(src, out)
    assert not leftovers(tmp_path)


def test_a_configuration_that_changes_when_it_has_been_read_is_not_copied(
    src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tensors would go by one configuration, and another lie beside them."""
    honest, reads, last = side_files.parse_json, [0], [0]

    def parse(data: bytes, where: str, **more: bool) -> object:
        reads[0] += where.endswith("config.json")
        if reads[0] == last[0]:
            (src / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 7.0}))
        return honest(data, where, **more)

    monkeypatch.setattr(side_files, "parse_json", parse)
    intarsia.plan(src, to="torch_dist")
    reads[0], last[0] = 0, reads[0]
    with pytest.raises(ChangedError, match=r"config.json changed while it was read"):
        intarsia.convert(src, tmp_path / "out", to="torch_dist")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("how", ["verify", "verify A B", "open"])
def test_a_checkpoint_that_is_replaced_while_it_is_checked_is_not_called_unsound(
    src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The index was of the one, and the files that it names are gone with it."""
    out = Path(shutil.copytree(src, tmp_path / "out"))
    new = write_hf(tmp_path / "new", model(CONFIG, seed=4), CONFIG)
    honest = hf_files.parse_json

    def parse(data: bytes, where: str, **more: bool) -> object:
        if where.startswith(str(out)) and new.exists():
            shutil.rmtree(out)
            new.rename(out)
        return honest(data, where, **more)

    monkeypatch.setattr(hf_files, "parse_json", parse)
    check = {
        "verify": lambda: intarsia.verify(out),
        "verify A B": lambda: intarsia.verify(src, out),
        "open": lambda: intarsia.open(out),
    }[how]
    with pytest.raises(ChangedError, match=f"{out} (was replaced or removed|is another folder)"):
        check()
    assert intarsia.verify(out)


def test_a_fault_that_is_found_in_what_was_replaced_meanwhile_is_none(
    src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(src, tmp_path / "out"))
    new = write_hf(tmp_path / "new", model(CONFIG, seed=4), CONFIG)

    def absent(*_: object) -> list[Fault]:
        if new.exists():
            out.rename(tmp_path / "gone")
            new.rename(out)
        return [Fault("file-missing", (), "x", "x is absent")]

    monkeypatch.setattr("intarsia.checking.alone.soundness.damaged_entries", absent)
    with pytest.raises(ChangedError, match=f"{out} was replaced or removed while it was read"):
        intarsia.verify(out)
    assert not intarsia.verify(out), "one that stays where it is has its faults"

"""`--overwrite` removes the old checkpoint and nothing else; a source is never the victim."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import intarsia
from intarsia.errors import UsageError
from intarsia.store.writing.staging import Staging
from tests.checkpoints import (
    Answer,
    assert_same,
    files_of,
    half_way,
    leftovers,
    llama_config,
    model,
    read_hf,
    write_hf,
)
from tests.checkpoints import intarsia as cli

CONFIG = llama_config()


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "hf", model(CONFIG), CONFIG)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An older checkpoint, with a small file that no framework knows."""
    older = write_hf(tmp_path / "older", model(CONFIG, seed=5), CONFIG)
    (older / "names.json").write_text("{}")
    intarsia.convert(older, tmp_path / "out", to="hf")
    return tmp_path / "out"


@pytest.mark.parametrize("to", ["hf", "dcp", "torch_dist", "fsdp_dtensor"])
def test_a_checkpoint_of_any_format_is_replaced_whole(src: Path, out: Path, to: str) -> None:
    intarsia.convert(src, out, to=to, overwrite=True)
    assert intarsia.verify(src, out)
    assert to == "hf" or not (out / "model.safetensors").exists()
    intarsia.convert(src, out, to="hf", overwrite=True)
    assert_same(read_hf(out), model(CONFIG))
    assert not leftovers(out.parent)


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "results/eval.json",
        "iter_0000002/.metadata",
        "ema.safetensors",
        ".git/HEAD",
        "model.bin",
    ],
)
@pytest.mark.parametrize("to", ["hf", "torch_dist"])
@pytest.mark.one_in(3)
def test_whatever_else_lies_there_is_named_and_kept(
    src: Path, out: Path, name: str, to: str
) -> None:
    intarsia.convert(src, out, to=to, overwrite=True)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_bytes(b"precious")
    before = files_of(out)
    answer = cli("convert", src, out, "--to", "dcp", "--overwrite")
    assert answer.status == 2
    assert name in answer.err
    assert "hint: " in answer.err
    assert files_of(out) == before
    assert not leftovers(out.parent)


def test_a_small_file_that_came_with_the_checkpoint_goes_with_it_unless_it_was_edited(
    src: Path, out: Path
) -> None:
    assert (out / "names.json").exists()
    (out / "names.json").write_text('{"mine": 1}')
    with pytest.raises(UsageError, match=r"names\.json"):
        intarsia.convert(src, out, to="hf", overwrite=True)
    (out / "names.json").write_text("{}")
    intarsia.convert(src, out, to="hf", overwrite=True)
    assert not (out / "names.json").exists()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_is_no_checkpoint_is_not_replaced(src: Path, tmp_path: Path, what: str) -> None:
    home = tmp_path / "home"
    if what == "folder":
        (home / "thesis").mkdir(parents=True)
        (home / "thesis" / "chapter").write_text("one")
    else:
        home.write_text("one")
    with pytest.raises(UsageError, match="cannot be read as a checkpoint"):
        intarsia.convert(src, home, to="hf", overwrite=True)
    assert home.exists()
    assert not leftovers(tmp_path)


def test_a_folder_of_checkpoints_is_not_taken_for_the_one_that_lies_in_it(
    src: Path, out: Path, tmp_path: Path
) -> None:
    """A run's folder is read as its newest checkpoint, and is not that checkpoint."""
    run = tmp_path / "run"
    run.mkdir()
    out.rename(run / "step-5")
    (run / "latest").write_text("step-5\n")
    before = files_of(run)
    for name in ("latest", "nothing"):
        with pytest.raises(UsageError, match="is not overwritten"):
            intarsia.convert(src, run, to="dcp", overwrite=True)
        assert files_of(run) == before
        if name == "latest":
            (run / "latest").unlink()
            del before["latest"]


def test_a_save_replaces_a_checkpoint_and_nothing_else(out: Path) -> None:
    import torch

    state = {"weight": torch.ones(3)}
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        intarsia.save(out, state, overwrite=True)
    (out / "notes.txt").unlink()
    intarsia.save(out, state, overwrite=True)
    assert intarsia.open(out)["weight"][:].tolist() == [1, 1, 1]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("renaming", ["as usual", "without renameat2"])
def test_what_appears_while_a_run_works_is_left_alone(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool, renaming: str
) -> None:
    if renaming != "as usual":
        monkeypatch.setattr("intarsia.store.local.swap._exchange", lambda *_: False)
    if not overwrite:
        shutil.rmtree(out)
    honest = Staging.sync

    def sync(self: Staging) -> None:
        out.mkdir(exist_ok=True)
        (out / "stranger").write_text("hers")
        honest(self)

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "sync", sync)
        with pytest.raises(UsageError, match="changed by another process during this run"):
            intarsia.convert(src, out, to="dcp", overwrite=overwrite, workers=1)
    assert (out / "stranger").read_text() == "hers"
    (out / "stranger").unlink()
    report = intarsia.convert(src, out, to="dcp", overwrite=overwrite, resume=True, workers=1)
    assert "resumed: " in str(report)
    assert intarsia.verify(src, out)
    assert not leftovers(out.parent)


def test_a_checkpoint_that_others_rewrote_meanwhile_is_left_alone(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Staging.sync

    def sync(self: Staging) -> None:
        write_hf(out, model(CONFIG, seed=9), CONFIG)
        honest(self)

    monkeypatch.setattr(Staging, "sync", sync)
    with pytest.raises(UsageError, match=r"changed by another process .*model\.safetensors"):
        intarsia.convert(src, out, to="dcp", overwrite=True)
    assert_same(read_hf(out), model(CONFIG, seed=9))


def test_a_stranger_who_comes_between_check_and_exchange_is_put_back(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intarsia.store.local import swap

    honest, calls = swap._exchange, []

    def exchange(a: Path, b: Path) -> bool:
        if not calls:
            (b / "stranger").write_text("hers")
        calls.append(a)
        return honest(a, b)

    monkeypatch.setattr(swap, "_exchange", exchange)
    with pytest.raises(UsageError, match="stranger"):
        intarsia.convert(src, out, to="dcp", overwrite=True)
    assert len(calls) == 2
    assert (out / "stranger").read_text() == "hers"
    assert (out / "model.safetensors").exists()


@pytest.mark.parametrize("link", ["file", "folder", "chain", "bind mount"])
def test_a_source_that_is_reached_through_links_is_never_the_victim(
    src: Path, tmp_path: Path, link: str
) -> None:
    """The destination is the folder that the source's bytes really lie in."""
    before = files_of(src)
    view = tmp_path / "view"
    if link == "folder":
        view.symlink_to(src)
    elif link == "bind mount":
        view.mkdir()
        if subprocess.run(["mount", "--bind", src, view], capture_output=True).returncode:
            pytest.skip("mounting is not permitted here")
    else:
        view.mkdir()
        for file in src.iterdir():
            to = file
            if link == "chain":
                to = tmp_path / f"hop-{file.name}"
                to.symlink_to(file)
            (view / file.name).symlink_to(to)
        for name in ("config.json", "tokenizer_config.json", "merges.txt"):
            (view / name).unlink()
            shutil.copy(src / name, view / name)
    try:
        with pytest.raises(UsageError, match="contains the source"):
            intarsia.convert(view, src, to="dcp", overwrite=True)
    finally:
        if link == "bind mount":
            subprocess.run(["umount", view], check=True)
    assert files_of(src) == before


def test_a_mount_point_is_refused_before_a_byte_is_written(src: Path, disk: Path) -> None:
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="is a mount point") as raised:
            intarsia.convert(src, disk, to="dcp", overwrite=overwrite)
        assert f"{disk}/checkpoint" in str(raised.value)
    assert not leftovers(disk.parent)
    intarsia.convert(src, disk / "checkpoint", to="dcp")


def test_a_checkpoint_with_a_mount_inside_is_not_replaced(src: Path, out: Path) -> None:
    (out / "optimizer").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "x", str(out / "optimizer")]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        with pytest.raises(UsageError, match="holds the mount point"):
            intarsia.convert(src, out, to="dcp", overwrite=True)
    finally:
        subprocess.run(["umount", out / "optimizer"], check=True)


def as_somebody(*words: object) -> Answer:
    """The command line, run by a user without rights."""
    if os.geteuid() != 0:
        pytest.skip("only root can act for another user")
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(12345)
    os.seteuid(12345)
    try:
        return cli(*words)
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that everybody may write to, on a way that everybody may go."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o011)
    home = tmp_path / "shared"
    home.mkdir()
    home.chmod(0o777)
    return home


@pytest.mark.parametrize("case", ["sticky", "closed", "lock", "partial"])
def test_what_belongs_to_another_user_is_refused_at_once_and_the_owner_named(
    src: Path, shared: Path, case: str
) -> None:
    out = shared / "out"
    if case in ("sticky", "closed"):
        write_hf(out, model(CONFIG, seed=5), CONFIG)
        shared.chmod(0o1777 if case == "sticky" else 0o777)
        out.chmod(0o777 if case == "sticky" else 0o755)
    elif case == "lock":
        (shared / ".out.intarsia-lock").touch()
    else:
        (shared / ".out.intarsia-partial").mkdir()
    for file in src.iterdir():
        file.chmod(0o644)
    before = files_of(shared)
    intarsia.convert(src, shared / "first", to="dcp")  # imports what that user may not read
    shutil.rmtree(shared / "first")
    answer = as_somebody("convert", src, out, "--to", "dcp", "--overwrite")
    assert answer.status == 2
    assert "belongs to root" in answer.err
    assert "ask root" in answer.err
    assert files_of(shared) == before
    assert as_somebody("convert", src, shared / "mine", "--to", "dcp").status == 0


def test_modes_follow_the_umask_and_private_stays_private(src: Path, tmp_path: Path) -> None:
    def mode(path: Path) -> str:
        return oct(path.stat().st_mode & 0o7777)

    honest = os.umask(0o027)
    try:
        (src / "model.safetensors").chmod(0o644)
        intarsia.convert(src, tmp_path / "usual", to="hf")
        assert mode(tmp_path / "usual") == "0o750"
        assert mode(tmp_path / "usual" / "model.safetensors") == "0o640"
        os.umask(0o002)
        intarsia.convert(src, tmp_path / "group", to="hf")
        assert mode(tmp_path / "group" / "model.safetensors") == "0o664"
        for file in src.iterdir():
            file.chmod(0o600)
        intarsia.convert(src, tmp_path / "private", to="hf")
        assert {mode(p) for p in (tmp_path / "private").iterdir()} == {"0o600"}
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty").chmod(0o2710)
        intarsia.convert(src, tmp_path / "empty", to="hf")
        assert mode(tmp_path / "empty") == "0o2710"
        intarsia.convert(src, tmp_path / "empty", to="dcp", overwrite=True)
        assert mode(tmp_path / "empty") == "0o2710"
        for file in (tmp_path / "group").iterdir():
            file.chmod(0o600)
        for file in src.iterdir():
            file.chmod(0o644)
        intarsia.convert(src, tmp_path / "group", to="hf", overwrite=True)
        assert mode(tmp_path / "group" / "model.safetensors") == "0o600"
    finally:
        os.umask(honest)


@pytest.mark.parametrize("length", [200, 229, 240, 255])
@pytest.mark.one_in(3)
def test_a_name_may_be_as_long_as_the_file_system_allows(
    src: Path, tmp_path: Path, length: int
) -> None:
    out = tmp_path / ("ü" * 20 + "x" * (length - 40))
    intarsia.convert(src, out, to="dcp")
    intarsia.convert(src, out, to="dcp", overwrite=True)
    assert intarsia.verify(src, out)
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_interrupt_between_renames_leaves_the_old_or_the_new(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Where two folders cannot change places in one step."""
    monkeypatch.setattr("intarsia.store.local.swap._exchange", lambda *_: False)
    honest, count = os.rename, [0]

    def rename(a: object, b: object) -> None:
        honest(a, b)
        if "intarsia-partial" in f"{a}{b}":
            count[0] += 1
            if count[0] == step:
                raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", rename)
    answer = cli("convert", src, out, "--to", "dcp", "--overwrite")
    monkeypatch.undo()
    if step == 1:
        assert answer.status == 130
        assert "nothing was committed" in answer.err
        assert (out / "model.safetensors").exists()
    else:
        assert answer.status == 0, answer.err
        assert "nothing was committed" not in answer.err
        assert intarsia.verify(src, out)
        assert not leftovers(out.parent)


def test_an_interrupt_after_the_swap_does_not_deny_it(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Staging) -> None:
        self.release()
        raise KeyboardInterrupt

    monkeypatch.setattr(Staging, "clear_up", interrupted)
    answer = cli("convert", src, out, "--to", "dcp", "--overwrite")
    monkeypatch.undo()
    assert answer.status == 0
    assert "interrupted after it was complete" in answer.out
    assert "nothing was committed" not in answer.err
    assert intarsia.verify(src, out)
    intarsia.convert(src, out, to="hf", overwrite=True)
    assert not leftovers(out.parent)


def test_a_real_interrupt_at_the_commit_tells_what_happened(src: Path, out: Path) -> None:
    child = half_way("convert", src, out, "--to", "dcp", "--overwrite")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "nothing was committed" in err
    assert (out / "model.safetensors").exists()

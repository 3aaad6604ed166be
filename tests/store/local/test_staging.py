"""A destination appears whole or not at all, whatever fails, and one writer at a time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from intarsia.errors import IntarsiaError, StoreError, UsageError
from intarsia.store.local.lock import Lock
from intarsia.store.writing.old_contents import OldContents
from intarsia.store.writing.staging import Staging
from tests.checkpoints import environment, files_of, leftovers


def begun(destination: Path, *, overwrite: bool = False) -> Staging:
    staging = Staging(destination, overwrite=overwrite)
    staging.begin()
    return staging


def test_a_folder_appears_at_commit_with_every_byte_in_place(tmp_path: Path) -> None:
    staging = begun(tmp_path / "out")
    staging.create("data", 10)
    staging.write("data", 4, [b"ef", b"", b"gh"])
    staging.write("data", 0, [b"abcd"])
    staging.write_small("sub/small", b"tiny")
    assert not (tmp_path / "out").exists()
    staging.commit()
    assert files_of(tmp_path / "out") == {"data": b"abcdefgh\0\0", "sub/small": b"tiny"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_parents_that_are_missing_are_made(tmp_path: Path) -> None:
    staging = begun(tmp_path / "a" / "b" / "out")
    staging.write_small("x", b"1")
    staging.commit()
    assert files_of(tmp_path) == {"a/b/out/x": b"1"}


def test_many_short_buffers_are_written_in_order(tmp_path: Path) -> None:
    parts = [bytes([k % 256]) * (k % 5) for k in range(5000)]
    staging = begun(tmp_path / "out")
    staging.create("data", sum(map(len, parts)))
    staging.write("data", 0, parts)
    staging.commit()
    assert (tmp_path / "out" / "data").read_bytes() == b"".join(parts)


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, b, at: honest(fd, [b[0][:3]], at))
    staging = begun(tmp_path / "out")
    staging.create("data", 20)
    staging.write("data", 0, [b"0123456789", b"abc", b"defghij"])
    staging.commit()
    assert (tmp_path / "out" / "data").read_bytes() == b"0123456789abcdefghij"


def test_abandoning_leaves_nothing(tmp_path: Path) -> None:
    staging = begun(tmp_path / "out")
    staging.write_small("x", b"1")
    staging.abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_destination_that_exists_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("data")
    with pytest.raises(UsageError, match="exists") as raised:
        begun(tmp_path / "out")
    assert "--overwrite" in str(raised.value)
    assert files_of(tmp_path) == {"out/precious": b"data"}


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    staging = begun(tmp_path / "out")
    staging.write_small("x", b"1")
    staging.commit()
    assert files_of(tmp_path) == {"out/x": b"1"}


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_overwriting_replaces_everything_at_commit(tmp_path: Path, kind: str) -> None:
    old = tmp_path / "out"
    if kind == "folder":
        (old / "sub").mkdir(parents=True)
        (old / "sub" / "old").write_text("old")
    else:
        old.write_text("old")
    before = files_of(tmp_path)
    staging = begun(old, overwrite=True)
    staging.write_small("x", b"1")
    assert {k: v for k, v in files_of(tmp_path).items() if ".intarsia-" not in k} == before
    staging.commit()
    assert files_of(tmp_path) == {"out/x": b"1"}
    assert not leftovers(tmp_path)


def test_what_others_replace_while_it_is_looked_at_is_not_called_something_else(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").touch()

    def judge(path: Path, contents: OldContents) -> None:
        (out / "old").rename(out / "new")
        raise UsageError(f"{path} holds more than the checkpoint: {[*contents.files]}")

    with pytest.raises(UsageError, match=r"out was changed by another process .*: new, old; "):
        Staging(out, overwrite=True, judge=judge).check()


def test_abandoning_an_overwrite_keeps_the_old(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    staging = begun(tmp_path / "out", overwrite=True)
    staging.write_small("x", b"1")
    staging.abandon()
    assert files_of(tmp_path) == {"out/old": b"old"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_symbolic_link_is_refused_as_a_destination(tmp_path: Path, overwrite: bool) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(UsageError, match="symbolic link"):
        begun(tmp_path / "link", overwrite=overwrite)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="symbolic link"):
        begun(tmp_path / "dangling", overwrite=overwrite)


def take_up(staging: Staging) -> None:
    """Claim a destination as a run does that goes on with what an earlier one left."""
    try:
        staging.claim()
        staging.transaction.check_left()
    finally:
        staging.abandon(keep=True)


@pytest.mark.parametrize("name", [
    ".out.intarsia-partial", ".out.intarsia-journal", ".out.intarsia-lock",
    ".out.intarsia-partial/optimizer", ".out.intarsia-partial/model.safetensors",
    ".out.intarsia-journal/job.new", ".out.intarsia-journal/0-0",
])  # fmt: skip
@pytest.mark.parametrize("leads_to", ["file", "folder", "nothing"])
def test_a_link_that_was_planted_where_we_write_is_refused(
    tmp_path: Path, name: str, leads_to: str
) -> None:
    outside, home = tmp_path / "outside", tmp_path / "home"
    (outside / "folder").mkdir(parents=True)
    (outside / "file").write_text("mine")
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).symlink_to(outside / leads_to)
    with pytest.raises(StoreError, match="link"):
        take_up(Staging(home / "out"))
    assert files_of(outside) == {"file": b"mine"}
    assert (home / name).is_symlink()


def test_a_link_planted_as_the_folder_that_was_replaced_never_becomes_the_destination(
    tmp_path: Path,
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / ".out.intarsia-partial-replaced").symlink_to(outside)
    staging = begun(tmp_path / "out")
    staging.write_small("x", b"1")
    staging.commit()
    assert files_of(tmp_path / "out") == {"x": b"1"}
    assert not (tmp_path / "out").is_symlink()
    assert not any(outside.iterdir())


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/x", "..", ".", "", "a\0b", "\ud800", "a" * 300]
)
def test_a_file_that_is_none_of_the_destination_is_refused(tmp_path: Path, name: str) -> None:
    staging = begun(tmp_path / "home" / "out")
    with pytest.raises(IntarsiaError):
        staging.write_small(name, b"x")
    staging.abandon()
    assert files_of(tmp_path) == {}


@pytest.mark.parametrize(
    "name", ["a b", "sub/x", "-rf", "~", "$HOME", "*", "\u00fc", "a\nb", "con", "x\\y"]
)
def test_an_odd_name_is_a_name(tmp_path: Path, name: str) -> None:
    staging = begun(tmp_path / "out")
    staging.write_small(name, b"x")
    staging.commit()
    assert files_of(tmp_path / "out") == {name: b"x"}


def test_a_symbolic_link_in_place_of_the_partial_folder_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("data")
    Staging(tmp_path / "out").folder.symlink_to(victim)
    with pytest.raises(StoreError, match="symbolic link"):
        begun(tmp_path / "out")
    assert files_of(victim) == {"precious": b"data"}


HOLDER = """
import sys, time
from intarsia.store.writing.old_contents import OldContents
from intarsia.store.writing.staging import Staging
staging = Staging(sys.argv[1])
staging.begin()
staging.write_small("half", b"written")
print("holding", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that is writing the destination."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "holding\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_second_writer_is_refused_while_the_first_works(tmp_path: Path, holder) -> None:
    with pytest.raises(UsageError, match="another process is writing"):
        begun(tmp_path / "out")
    assert (Staging(tmp_path / "out").folder / "half").read_bytes() == b"written"
    assert holder.poll() is None


def test_what_a_killed_writer_left_is_cleared(tmp_path: Path, holder) -> None:
    holder.kill()
    holder.wait()
    partial = Staging(tmp_path / "out").folder
    assert (partial / "half").exists()
    (partial / "sub").mkdir()
    (partial / "sub" / "more").write_text("left over")
    deadline = time.monotonic() + 10
    while True:
        try:
            staging = begun(tmp_path / "out")
            break
        except UsageError:
            assert time.monotonic() < deadline, "the lock outlived its process"
    staging.write_small("x", b"1")
    staging.commit()
    assert files_of(tmp_path) == {"out/x": b"1"}


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "out")
    with pytest.raises(StoreError, match=r"are to be written, .* are free") as raised:
        staging.begin(1 << 60)
    assert "nothing was written" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    staging = begun(tmp_path / "out")
    staging.create("data", 4)
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(StoreError, match="data: No space left on device") as raised:
        staging.write("data", 0, [b"1234"])
    assert "free some space" in str(raised.value)
    staging.abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_sync_that_fails_commits_nothing(tmp_path: Path, monkeypatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    staging = begun(tmp_path / "out")
    staging.write_small("x", b"1")
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoreError, match="Input/output error"):
        staging.commit()
    monkeypatch.undo()
    staging.abandon()
    assert list(tmp_path.iterdir()) == []


def test_an_overwrite_that_cannot_be_finished_keeps_the_old(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    staging = begun(tmp_path / "out", overwrite=True)
    staging.write_small("x", b"1")

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("intarsia.store.local.transaction.put_in_place", broken)
    with pytest.raises(StoreError):
        staging.commit()
    staging.abandon()
    assert files_of(tmp_path) == {"out/old": b"old"}


def test_every_file_and_folder_is_synced_before_it_is_visible(tmp_path: Path, monkeypatch) -> None:
    synced: list[str] = []
    honest = os.fsync

    def watch(fd: int) -> None:
        assert not (tmp_path / "out").exists() or os.readlink(f"/proc/self/fd/{fd}") == str(
            tmp_path
        )
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        honest(fd)

    staging = begun(tmp_path / "out")
    staging.write_small("x", b"1")
    staging.write_small("sub/y", b"2")
    monkeypatch.setattr(os, "fsync", watch)
    staging.commit()
    assert {"x", "y", "sub", ".out.intarsia-partial", tmp_path.name} <= set(synced)
    assert synced[-1] == tmp_path.name


def test_where_folders_cannot_change_places_overwriting_takes_two_steps(
    tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    monkeypatch.setattr("intarsia.store.local.swap._exchange", lambda *_: False)
    staging = begun(tmp_path / "out", overwrite=True)
    staging.write_small("x", b"1")
    staging.commit()
    assert files_of(tmp_path) == {"out/x": b"1"}
    assert not leftovers(tmp_path)


def test_a_run_killed_between_the_two_steps_is_undone_by_the_next(tmp_path: Path) -> None:
    aside = tmp_path / ".out.intarsia-partial-replaced"
    aside.mkdir()
    (aside / "old").write_text("old")
    with pytest.raises(UsageError, match="exists"):
        begun(tmp_path / "out")
    assert (tmp_path / "out" / "old").read_text() == "old"
    assert not aside.exists()


@pytest.mark.parametrize("call", ["_lock", "_is_mine"])
def test_an_interrupt_while_the_lock_is_taken_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    honest = getattr(Lock, call)

    def interrupted(self: Lock, fd: int) -> object:
        monkeypatch.setattr(Lock, call, honest)
        raise KeyboardInterrupt

    monkeypatch.setattr(Lock, call, interrupted)
    lock = Lock(tmp_path / "lock", tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        lock.take()
    assert not lock.held
    assert not (tmp_path / "lock").exists()


def test_an_interrupt_while_another_holds_the_lock_leaves_it_to_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Lock(tmp_path / "lock", tmp_path / "out") for _ in range(2))
    first.take()

    def interrupted(self: Lock, fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Lock, "_lock", interrupted)
    with pytest.raises(KeyboardInterrupt):
        second.take()
    assert (tmp_path / "lock").exists()
    first.give_back()


def many_files(staging: Staging, count: int) -> None:
    staging.begin()
    for k in range(count):
        staging.create(f"f{k}", 4)
    for k in range(count):
        staging.write(f"f{k}", 0, [b"data"])


def test_many_files_are_synced_side_by_side_and_each_after_its_last_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[str, bytes] = {}
    both, honest = threading.Barrier(2), os.fsync

    def fsync(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.name in ("f0", "f1"):
            both.wait(10)  # in one sync after another the first would wait in vain
        if path.is_file():
            synced[path.name] = path.read_bytes()
        honest(fd)

    staging = Staging(tmp_path / "out")
    monkeypatch.setattr(os, "fsync", fsync)
    many_files(staging, 60)
    staging.commit()
    assert synced == files_of(tmp_path / "out") == {f"f{k}": b"data" for k in range(60)}


def test_a_sync_of_many_that_fails_fails_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = os.fsync

    def fsync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("f33"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        honest(fd)

    staging = Staging(tmp_path / "out")
    monkeypatch.setattr(os, "fsync", fsync)
    many_files(staging, 60)
    with pytest.raises(StoreError, match="f33: Input/output error") as raised:
        staging.commit()
    assert raised.value.lost
    assert not staging.abandon(keep=True)
    assert not (tmp_path / "out").exists()


def test_more_files_than_may_be_open_are_each_on_disk_before_they_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intarsia.store.local.descriptors.affordable", lambda: 8)
    synced, honest, honest_data = set(), os.fsync, os.fdatasync

    def noted(sync: Callable[[int], None]) -> Callable[[int], None]:
        def call(fd: int) -> None:
            sync(fd)
            synced.add(Path(os.readlink(f"/proc/self/fd/{fd}")).name)

        return call

    monkeypatch.setattr(os, "fsync", noted(honest))
    monkeypatch.setattr(os, "fdatasync", noted(honest_data))
    staging = Staging(tmp_path / "out")
    many_files(staging, 50)
    staging.flush()
    assert synced >= {f"f{k}" for k in range(50)}
    staging.abandon()


def test_other_ranks_wait_for_the_very_folder_that_the_first_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = begun(tmp_path / "out"), Staging(tmp_path / "out", alone=False)
    other.await_folder(first.folder_number)
    assert other.number == first.folder_number
    monkeypatch.setattr("intarsia.store.writing.staging.AWAIT_SECONDS", -1.0)
    with pytest.raises(StoreError, match="which rank 0 has made"):
        other.await_folder(first.folder_number + 1)
    first.abandon()
    with pytest.raises(StoreError, match="is gone: it was removed while it was written"):
        _ = other.folder_number


def test_a_store_is_broken_that_lost_something_of_what_is_written(tmp_path: Path) -> None:
    staging = begun(tmp_path / "out")
    inside, elsewhere = staging.folder / "data", tmp_path / "other" / "data"
    assert staging.is_broken(StoreError("lost", lost=True))
    assert staging.is_broken(StoreError("lost", lost=True, path=inside))
    assert not staging.is_broken(StoreError("lost", lost=True, path=elsewhere))
    assert not staging.is_broken(StoreError("refused", path=inside))
    assert not staging.is_broken(OSError("no error of a store"))
    staging.abandon()

"""Calls whose failure means something of its own: locks, advice, syncs, and a destination that is replaced."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator

import pytest

from tests.checkpoints import files_of
from tests.faults.failing import Outcome, Trouble
from tests.faults.test_failing_disk import Place, assert_clear, calls_of, started


def slow(number: int) -> object:
    return pytest.param(number, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A journal that syncs and bytes that are written back all the time."""
    yield from started(tmp_path_factory.mktemp("kinds"), eager=True)


@pytest.fixture(autouse=True)
def cleared(place: Place) -> Iterator[None]:
    yield
    place.clear()


def run(place: Place, trouble: Trouble, *more: str) -> Outcome:
    return place.process.run(*place.words("hf", "dcp", *more), trouble=trouble)


def test_a_lock_that_another_holds_is_told_from_a_file_system_without_locks(place: Place) -> None:
    held = run(place, place.trouble(1, errno.EAGAIN, calls="f"))
    assert held.status == 2
    assert f"another process is writing {place.out}" in held.err
    for number in (errno.ENOLCK, errno.EOPNOTSUPP):
        without = run(place, place.trouble(1, number, calls="f"))
        assert_clear(without, number, place.root)
        assert ".out.intarsia-lock cannot be locked" in without.err
        assert "choose a destination on a file system with locks" in without.err
    assert run(place, place.trouble(1, errno.EINTR, calls="f")).status == 0, "it is asked again"


def test_advice_that_is_not_taken_is_not_missed(place: Place) -> None:
    for words in (("digest", place.root / "dcp"), ("verify", place.root / "dcp")):
        calm = place.process.run(*words)
        trouble = place.trouble(1, errno.EIO, calls="v", stays=True)
        advised = place.process.run(*words, trouble=trouble)
        assert (advised.status, advised.out) == (0, calm.out)
    assert place.process.run("digest", place.root / "dcp", trouble=place.trouble(calls="v")).calls


@pytest.mark.parametrize("number", [errno.ENOSPC, slow(errno.EIO), slow(errno.EDQUOT)])
def test_bytes_that_could_not_be_made_to_last_are_written_again(place: Place, number: int) -> None:
    """The kernel drops what it could not write, and a second sync says that all is well."""
    for letter in "sb":
        calls = run(place, place.trouble(calls=letter)).calls
        assert calls or letter == "b", "what is left to write back when all is written is not begun"
        place.clear()
        for at in range(1, calls, max(1, calls // 4)):
            ended = run(place, place.trouble(at, number, calls=letter))
            if ended.status == 0:
                assert not ended.failed, ended
                place.clear()
                continue
            assert_clear(ended, number, place.root)
            if place.out.exists():
                assert "in its place" in ended.err, ended
                place.clear()
                continue
            assert "--resume" not in ended.err, ended
            again = run(place, Trouble(), "--resume")
            assert again.status == 0, (ended, again)
            assert "resumed: " not in again.out, (ended, again)
            place.clear()


def test_write_back_that_the_kernel_does_not_know_is_left_to_the_sync(place: Place) -> None:
    for number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        ended = run(place, place.trouble(1, number, calls="b", stays=True))
        assert ended.status == 0, ended
        place.clear()


def replaced(place: Place, at: int, number: int) -> None:
    """Replace a checkpoint while a call fails: the old one is there or the new one, and a rerun ends it."""
    place.clear()
    shutil.copytree(place.root / "hf", place.out)
    old = files_of(place.out)
    ended = run(place, place.trouble(at, number), "--overwrite")
    new = files_of(place.root / "whole hf dcp")
    if ended.status == 0:
        assert files_of(place.out) == new, ended
        return
    assert_clear(ended, number, place.root)
    if place.out.exists():
        assert files_of(place.out) in (old, new), ended
    again = run(place, Trouble(), "--overwrite")
    assert again.status == 0, (ended, again)
    assert files_of(place.out) == new, (ended, again)
    assert not any(place.out.parent.glob(".out.*")), (ended, again)


def test_a_checkpoint_that_is_replaced_on_a_failing_disk_is_there_or_the_new_one(
    place: Place,
) -> None:
    count = calls_of(place, "hf", "dcp")
    for at in range(count - 30, count + 10, 6):
        replaced(place, at, errno.EIO)


@pytest.mark.parametrize("apart", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_look_at_the_folder_that_is_written_may_fail(place: Place, apart: int) -> None:
    folder = str(place.out.with_name(".out.intarsia-partial"))
    looks = run(place, Trouble(under=folder, calls="i")).calls
    assert looks
    for at in range(1, looks + 1, apart):
        place.clear()
        ended = run(place, Trouble(under=folder, calls="i", at=at, errno=errno.EIO))
        if ended.status:
            assert_clear(ended, errno.EIO, place.root)
        else:
            assert not ended.failed or "could not be removed" in ended.out, ended


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE, errno.EINTR])
def test_every_call_of_a_replacement_may_fail(place: Place, number: int) -> None:
    for at in range(1, calls_of(place, "hf", "dcp") + 10):
        replaced(place, at, number)


def test_a_tracker_that_cannot_be_looked_for_is_a_fault(place: Place) -> None:
    file = str(place.root / "hf" / "latest_checkpointed_iteration.txt")
    calls = place.process.run("verify", place.root / "hf", trouble=Trouble(under=file)).calls
    assert calls
    for at in range(1, calls + 1):
        trouble = Trouble(under=file, at=at, errno=errno.EIO)
        ended = place.process.run("verify", place.root / "hf", trouble=trouble)
        assert ended.status in (1, 2), ended
        assert "latest_checkpointed_iteration.txt: Input/output error" in ended.out + ended.err

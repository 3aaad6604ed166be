"""Every call to the disk that can fail, failing: one clear error, nothing half-valid, and `--resume` ends it.

`failing_disk.c` stands before the system calls of a process that runs the command line.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import intarsia
from intarsia.errors import IntarsiaError
from intarsia.kernel.library import has_kernel
from tests.checkpoints import files_of, llama_config, model, write_hf
from tests.faults.failing import CALLS, Disk, Outcome, Trouble, library

MESHES = {"hf": "", "dcp": "fsdp=2", "torch_dist": "tp=2", "fsdp_dtensor": "fsdp=2"}
RING = [
    ("hf", "dcp"),
    ("dcp", "torch_dist"),
    ("torch_dist", "fsdp_dtensor"),
    ("fsdp_dtensor", "hf"),
]
HARMLESS = ("d", "p", "m", "v", "k", "q")
"""Making a folder that is there, mapping bytes that can be read as well, advice, the end of a read,
and what Python asks of a file that it has opened, to choose a buffer."""
GRAVE = "".join(letter for letter in CALLS if letter not in HARMLESS)
NUMBERS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class Place:
    """A folder with one model in every format, and a process whose disk can be made to fail."""

    root: Path
    process: Disk

    @property
    def out(self) -> Path:
        return self.root / "disk" / "out"

    def words(self, source: str, to: str, *more: str) -> list[object]:
        mesh = ["--mesh", MESHES[to]] if MESHES[to] else []
        return ["convert", self.root / source, self.out, "--to", to, *mesh, "--workers", "1", *more]

    def whole(self, source: str, to: str) -> dict[str, bytes]:
        """The files of an undisturbed run."""
        kept = self.root / f"whole {source} {to}"
        if not kept.exists():
            done = self.process.run(*self.words(source, to))
            assert done.status == 0, done.err
            self.out.rename(kept)
        return files_of(kept)

    def trouble(self, at: int = 0, number: int = 0, **more: object) -> Trouble:
        return Trouble(under=str(self.root), at=at, errno=number, **more)  # type: ignore[arg-type]

    def clear(self) -> None:
        shutil.rmtree(self.root / "disk", ignore_errors=True)


def started(root: Path, *, eager: bool, moving: bool = False) -> Iterator[Place]:
    built = library(root)
    config = llama_config(num_hidden_layers=1)
    write_hf(root / "hf", model(config), config)
    for format, mesh in MESHES.items():
        if format != "hf":
            intarsia.convert(root / "hf", root / format, to=format, mesh=mesh)
    process = Disk(built, window_bytes=512 if eager else 2048, eager=eager, moving=moving)
    yield Place(root, process)
    process.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from started(tmp_path_factory.mktemp("calm"), eager=False)


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """As `place`, with a journal that syncs all the time, on a thread of its own."""
    yield from started(tmp_path_factory.mktemp("eager"), eager=True)


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """As `place`, with windows that go from file to file."""
    if not has_kernel():
        pytest.skip("the kernel is not built: no C compiler")
    yield from started(tmp_path_factory.mktemp("moving"), eager=False, moving=True)


@pytest.fixture(autouse=True)
def cleared(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing of one test is in the way of the next."""
    yield
    for name in ("place", "eager", "moving"):
        if name in request.fixturenames:
            request.getfixturevalue(name).clear()


def passes_for_whole(path: Path) -> bool:
    """Whether somebody who finds this folder takes it for a checkpoint."""
    try:
        return bool(intarsia.verify(path))
    except IntarsiaError:
        return False


def assert_clear(ended: Outcome, number: int, root: Path) -> None:
    """One message that names a file and the reason, and no traceback."""
    assert ended.status == 2, ended
    assert ended.err.startswith("intarsia: /"), ended
    assert ended.err.count("intarsia: ") == 1, ended
    assert "Traceback" not in ended.err, ended
    assert "INTARSIA_DEBUG" not in ended.err, ended
    first = ended.err.splitlines()[0]
    assert os.strerror(number) in first, ended
    assert str(root) in first, ended


def fail(place: Place, source: str, to: str, trouble: Trouble) -> Outcome:
    """Run with one failing call, look at what it left, and have `--resume` end it."""
    whole = place.whole(source, to)
    ended = place.process.run(*place.words(source, to), trouble=trouble)
    if ended.status == 0:
        assert files_of(place.out) == whole, ended
        if ended.failed[:1] not in ("", *HARMLESS) and trouble.errno != errno.EINTR:
            assert (
                "it is complete, but the leftovers beside it could not be removed" in ended.out
            ), ended
    else:
        assert ended.failed, ended
        assert_clear(ended, trouble.errno, place.root)
        if place.out.exists():
            assert files_of(place.out) == whole, ended
            assert "in its place" in ended.err, ended
        for left in place.out.parent.glob(".out.*") if place.out.parent.exists() else ():
            assert not passes_for_whole(left), (ended, left)
        again = place.process.run(*place.words(source, to, "--resume"))
        assert again.status == 0, (ended, again)
        assert files_of(place.out) == whole, (ended, again)
        assert not any(place.out.parent.glob(".out.*")), (ended, again)
    place.clear()
    return ended


def calls_of(place: Place, source: str, to: str) -> int:
    """How many calls a whole run makes."""
    place.whole(source, to)
    done = place.process.run(*place.words(source, to), trouble=place.trouble())
    assert done.status == 0, done.err
    place.clear()
    return done.calls


@pytest.mark.parametrize(("source", "to"), RING)
@pytest.mark.one_in(2)
def test_a_call_that_fails_anywhere_is_told_and_resumed(place: Place, source: str, to: str) -> None:
    count = calls_of(place, source, to)
    chance = random.Random(f"{source} {to}")
    for k, at in enumerate(sorted(chance.sample(range(1, count + 1), 12))):
        fail(place, source, to, place.trouble(at, NUMBERS[k % 4]))


@pytest.mark.parametrize(("source", "to"), [("hf", "dcp"), ("torch_dist", "hf")])
@pytest.mark.one_in(2)
def test_a_read_or_a_write_that_fails_under_a_move_is_told_and_resumed(
    moving: Place, source: str, to: str
) -> None:
    whole = moving.whole(source, to)
    for short, interrupt in ((1, 0), (2, 3)):
        trouble = moving.trouble(short_every=short, interrupt_every=interrupt)
        done = moving.process.run(*moving.words(source, to), trouble=trouble)
        assert done.status == 0, done.err
        assert files_of(moving.out) == whole
        moving.clear()
    for calls, number in (("r", errno.EIO), ("w", errno.ENOSPC), ("wq", errno.EIO)):
        calm = moving.process.run(*moving.words(source, to), trouble=moving.trouble(calls=calls))
        moving.clear()
        for at in range(3, calm.calls + 1, max(1, calm.calls // 3)):
            fail(moving, source, to, moving.trouble(at, number, calls=calls))


def test_a_removal_that_fails_is_told_and_done_by_the_next_run(place: Place) -> None:
    calm = place.process.run(*place.words("hf", "dcp"), trouble=place.trouble(calls="u"))
    place.clear()
    assert calm.calls
    for at in range(1, calm.calls + 1):
        fail(place, "hf", "dcp", place.trouble(at, errno.EIO, calls="u"))


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("source", "to"), RING)
def test_every_call_that_fails_under_a_move_is_told_and_resumed(
    moving: Place, source: str, to: str, number: int
) -> None:
    for at in range(1, calls_of(moving, source, to) + 1):
        fail(moving, source, to, moving.trouble(at, number))


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("source", "to"), RING)
def test_every_call_that_fails_is_told_and_resumed(
    place: Place, source: str, to: str, number: int
) -> None:
    for at in range(1, calls_of(place, source, to) + 1):
        fail(place, source, to, place.trouble(at, number))


@pytest.mark.slow
@pytest.mark.parametrize("to", MESHES)
@pytest.mark.parametrize("source", MESHES)
def test_all_pairs_of_formats_bear_a_failing_disk(place: Place, source: str, to: str) -> None:
    for at in range(1, calls_of(place, source, to) + 1, 3):
        fail(place, source, to, place.trouble(at, NUMBERS[at % 4]))


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_syncs_that_fail_on_their_own_thread_are_told_too(eager: Place, number: int) -> None:
    seen = set()
    for at in range(1, 30):
        ended = fail(eager, "hf", "dcp", eager.trouble(at, number, calls="s"))
        seen.add(Path(ended.failed[2:]).name)
    assert {"__0_0.distcp", ".out.intarsia-partial", "job", "0-0"} <= seen


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
@pytest.mark.one_in(2)
def test_a_disk_that_stays_dead_is_told_once(place: Place, number: int) -> None:
    """Nothing can be removed then either; what is left is no checkpoint, and a later run ends it."""
    count = calls_of(place, "hf", "dcp")
    for at in range(8, count + 1, 29):
        fail(place, "hf", "dcp", place.trouble(at, number, stays=True))


@pytest.mark.parametrize(("source", "to"), [("hf", "dcp"), ("torch_dist", "hf")])
def test_short_and_interrupted_calls_are_continued(place: Place, source: str, to: str) -> None:
    whole = place.whole(source, to)
    for short, interrupt in ((1, 0), (2, 3), (0, 2)):
        trouble = place.trouble(short_every=short, interrupt_every=interrupt)
        done = place.process.run(*place.words(source, to), trouble=trouble)
        assert done.status == 0, done.err
        assert files_of(place.out) == whole
        for words in (("verify", place.out), ("verify", place.root / source, place.out)):
            checked = place.process.run(*words, trouble=trouble)
            assert checked.status == 0, checked.err + checked.out
        place.clear()


@pytest.mark.parametrize("command", ["verify", "verify two", "digest", "inspect", "diff"])
def test_reads_that_fail_are_told_by_every_command(place: Place, command: str) -> None:
    pair = (place.root / "dcp", place.root / "torch_dist")
    word = command.split()[0]
    words = (word, *(pair if command in ("verify two", "diff") else pair[:1]))
    calm = place.process.run(*words, trouble=place.trouble(calls=GRAVE))
    assert calm.status == 0, calm.err
    assert calm.calls
    for at in range(1, calm.calls + 1, max(1, calm.calls // 12)):
        ended = place.process.run(*words, trouble=place.trouble(at, errno.EIO, calls=GRAVE))
        if not ended.failed:  # threads share the work, so one run may make fewer calls than another
            assert (ended.status, ended.out) == (calm.status, calm.out), ended
            continue
        assert ended.status, ended
        text = ended.err + ended.out
        assert os.strerror(errno.EIO) in text, ended
        assert Path(ended.failed[2:]).name in text, ended
        assert "Traceback" not in text, ended
        assert "INTARSIA_DEBUG" not in text, ended


@pytest.mark.parametrize("source", ["torch_dist", "fsdp_dtensor"])
def test_no_read_that_fails_is_taken_for_an_empty_object_or_an_unknown_iteration(
    place: Place, source: str
) -> None:
    words = ("plan", place.root / source, "--to", "hf")
    calm = place.process.run(*words, trouble=place.trouble(calls=GRAVE))
    for at in range(1, calm.calls + 1):
        ended = place.process.run(*words, trouble=place.trouble(at, errno.EIO, calls=GRAVE))
        assert ended.failed, ended
        assert_clear(ended, errno.EIO, place.root)


def test_whatever_can_fail_of_work_that_ranks_share_is_in_a_block_whose_failure_they_tell(
    place: Place,
) -> None:
    """Elsewhere the other ranks would hear of a lost connection, and not of the reason."""
    for words in (place.words("hf", "dcp"), ["digest", place.root / "torch_dist"]):
        ended = place.process.run(*words, trouble=place.trouble(calls=GRAVE))
        assert (ended.status, ended.unheard) == (0, 0), ended
        assert ended.calls


def test_the_bytes_that_the_source_cannot_give_cost_nothing_of_what_is_written(
    place: Place,
) -> None:
    """A disk that fails to *read* has lost nothing of the destination's."""
    calls = place.process.run(
        *place.words("hf", "dcp"), trouble=Trouble(under=str(place.root / "hf"), calls="r")
    ).calls
    place.clear()
    trouble = Trouble(under=str(place.root / "hf"), calls="r", at=calls - 3, errno=errno.EIO)
    ended = place.process.run(*place.words("hf", "dcp"), trouble=trouble)
    assert ended.status == 2
    assert "run again with --resume" in ended.err
    again = place.process.run(*place.words("hf", "dcp", "--resume"))
    assert "resumed: " in again.out
    found = files_of(place.out)
    place.clear()
    assert found == place.whole("hf", "dcp")

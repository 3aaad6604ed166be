"""Two ranks that share one job, of which one has a disk that fails: both say so, and nothing is committed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkpoints import files_of, leftovers, llama_config, model, write_hf
from tests.faults.failing import Outcome, Ranks, Trouble, library
from tests.faults.test_failing_disk import HARMLESS

NUMBERS = (errno.EIO, errno.ENOSPC, errno.ESTALE)
SECONDS = 30
"""Most of it is what two ranks take to begin on a busy machine; a rank that waits would take longer."""
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Place:
    """A folder with a checkpoint, and two ranks."""

    root: Path
    ranks: Ranks

    @property
    def disk(self) -> Path:
        return self.root / "disk"

    @property
    def out(self) -> Path:
        return self.disk / "step-2"

    @property
    def convert(self) -> list[object]:
        return ["convert", self.root / "hf", self.out, "--to", "dcp", "--mesh", "fsdp=2"]

    def begin(self) -> None:
        """A folder with an older checkpoint, which is the last so far."""
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.copytree(self.root / "before", self.disk)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("ranks")
    config = llama_config(num_hidden_layers=1)
    write_hf(root / "hf", model(config), config)
    ranks = Ranks(library(root))
    for done in ranks.both("save", root / "before" / "step-1", 1):
        assert done.status == 0, done.err
    yield Place(root, ranks)
    ranks.close()


def whole(place: Place, words: list[object]) -> dict[str, bytes]:
    """The files of an undisturbed run."""
    place.begin()
    for done in place.ranks.both(*words):
        assert done.status == 0, done.err
    return files_of(place.disk)


def fail(
    place: Place, words: list[object], expected: dict[str, bytes], rank: int, trouble: Trouble
) -> list[Outcome]:
    """Run with a failing call on one rank, look at what is left, and run again."""
    place.begin()
    before = files_of(place.disk)
    started = time.monotonic()
    ended = place.ranks.both(*words, trouble=trouble, rank=rank)
    assert time.monotonic() - started < SECONDS, ended
    mine, other = ended[rank], ended[1 - rank]
    assert mine.status == other.status, ended
    for each in ended:
        assert "Traceback" not in each.err, ended
        assert "INTARSIA_DEBUG" not in each.err, ended
    seen = {k: v for k, v in files_of(place.disk).items() if ".intarsia-" not in k}
    if mine.status == 0:
        assert seen == expected, ended
        told = "it is complete, but the leftovers beside it" in mine.out + mine.err
        assert mine.failed[:1] in ("", *HARMLESS) or told, ended
        return ended
    assert mine.status == 2, ended
    reason = os.strerror(trouble.errno)
    assert reason in mine.err.splitlines()[0], ended
    assert f"rank {rank} failed" in other.err, ended
    assert reason in other.err, ended
    if seen != before:
        assert "in its place" in mine.err, ended
        assert {k: v for k, v in expected.items() if k != "latest"}.items() <= seen.items()
        assert seen.keys() == expected.keys()
        return ended
    again = place.ranks.both(*words, *(["--resume"] if words[0] == "convert" else []))
    assert all(each.status == 0 for each in again), (ended, again)
    assert files_of(place.disk) == expected, ended
    assert not leftovers(place.disk), ended
    return ended


def sweep(place: Place, words: list[object], rank: int, count: int | None = None) -> int:
    """Fail calls of one rank, all or some; how many runs ended with an error."""
    expected = whole(place, words)
    place.begin()
    under = Trouble(under=str(place.root))
    calls = place.ranks.both(*words, trouble=under, rank=rank)[rank].calls
    chosen = range(1, calls + 1)
    if count is not None:
        chosen = sorted(random.Random(f"{words[0]} {rank}").sample(chosen, count))
    told = 0
    for at in chosen:
        trouble = Trouble(under=str(place.root), at=at, errno=NUMBERS[at % len(NUMBERS)])
        told += fail(place, words, expected, rank, trouble)[0].status == 2
    return told


def test_a_conversion_of_which_one_rank_fails_is_committed_by_none(place: Place) -> None:
    assert sweep(place, place.convert, 1, 4)


def test_a_save_of_which_one_rank_fails_leaves_the_checkpoint_before_it(place: Place) -> None:
    assert sweep(place, ["save", place.out, 2], 1, 4)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("what", ["convert", "save"])
def test_every_call_of_one_rank_that_fails_is_told_by_both(
    place: Place, what: str, rank: int
) -> None:
    assert sweep(place, place.convert if what == "convert" else ["save", place.out, 2], rank)

"""Runs killed at random points, and what the next makes of them; `kills.py` prints it as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints import files_of, leftovers
from tests.faults.dying import counts
from tests.faults.kills import BOUND, Range, kills, sources


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Range:
    return sources(tmp_path_factory.mktemp("kills"), megabytes=16)


def test_a_killed_run_is_continued_and_at_most_a_twentieth_is_redone(place: Range) -> None:
    found = list(kills(place, 3, seed=1))
    assert all(kill.good for kill in found), "\n".join(map(str, found))


@pytest.mark.slow
def test_fifty_kills(tmp_path: Path) -> None:
    found = list(kills(sources(tmp_path, megabytes=48), 50, seed=2))
    assert all(kill.good for kill in found), "\n".join(map(str, found))
    assert max(kill.redone for kill in found) <= BOUND


def test_a_run_that_is_killed_again_and_again_gets_done(place: Range) -> None:
    job = "hf -> dcp"
    whole = place.whole[job]
    written = 0
    more: tuple[str, ...] = ()
    for attempt in range(6):
        child = place.run(job, *more, "--workers", str(1 + attempt), die_at=whole.calls // 5)
        ended = (
            child.wait()
        )  # each run does a fifth of the work or so: how often it syncs goes by time
        assert ended in (-9, 0)
        written += counts(place.counts).written
        more = ("--resume",)
        if ended == 0 or written > 0.7 * whole.written:
            break
    if ended != 0:
        assert place.run(job, "--resume", "--memory", "16MiB").wait() == 0
        written += counts(place.counts).written
    assert files_of(place.out) == files_of(place.reference(job))
    assert not leftovers(place.out.parent)
    assert written <= (1 + (attempt + 1) * BOUND) * whole.written
    place.clear()

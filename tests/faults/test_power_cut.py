"""Power cuts at any point: what was not synced may be gone, and no half of it is taken for a whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.checkpoints import files_of
from tests.faults.failing import Trouble
from tests.faults.power_cut import Change, Model, read_log
from tests.faults.test_failing_disk import Place, eager, passes_for_whole, place

__all__ = ["eager", "place"]  # fixtures

JOBS = [("hf", "dcp"), ("dcp", "hf"), ("hf", "torch_dist"), ("dcp", "fsdp_dtensor")]


def logged(place: Place, source: str, to: str, *more: str) -> list[Change]:
    """Every change that a run makes to its disk, which starts as it is."""
    place.out.parent.mkdir(exist_ok=True)
    log = place.root / "log"
    words = place.words(source, to, *more)
    trouble = Trouble(under=str(place.out.parent), log=str(log))
    done = place.process.run(*words, trouble=trouble)
    assert done.status == 0, done.err
    return read_log(log)


def marked(changes: list[Change], out: Path) -> bool:
    """Whether a mark that covers some records is on disk for sure, and nothing is in its place yet."""
    journal, said = str(out.with_name(f".{out.name}.intarsia-journal")), False
    for change in changes:
        if change.what == "w" and b'"synced":' in change.data:
            said = said or b'"synced":0}' not in change.data
        if change.what == "s" and change.path == journal and said:
            return not any(c.what == "n" and c.other == str(out) for c in changes)
    return False


def cut(place: Place, source: str, to: str, chance: random.Random, *more: str) -> list[Change]:
    """A run that a power cut ends at some point: its changes up to there; the disk is what is left."""
    place.out.parent.mkdir(exist_ok=True)
    model = Model(place.out.parent)
    changes = logged(place, source, to, *more)
    changes = changes[: chance.randint(1, len(changes))]
    for change in changes:
        model.apply(change)
    place.clear()
    model.lay_down(place.out.parent, chance)
    return changes


def test_a_log_replayed_to_its_end_gives_the_files_of_the_run(place: Place) -> None:
    """The model itself is true: with nothing lost it gives back what the run wrote."""
    whole = place.whole("hf", "dcp")
    changes = logged(place, "hf", "dcp")
    assert files_of(place.out) == whole
    place.clear()
    model = Model(place.out.parent)
    for change in changes:
        model.apply(change)
    model.lay_down(place.out.parent, random.Random(0))
    assert files_of(place.out) == whole, "all of it is on disk when a run has ended"


def looked_at(place: Place, whole: dict[str, bytes]) -> None:
    """Whoever looks at what a cut left finds a whole checkpoint or none."""
    if place.out.exists():
        assert files_of(place.out) == whole
    for left in place.out.parent.glob(".out.*"):
        assert not passes_for_whole(left), left


def cuts(place: Place, source: str, to: str, count: int) -> None:
    """Cut runs at random points and take them up, every third after a second cut; what a mark covers is
    found again."""
    whole = place.whole(source, to)
    chance = random.Random(f"{source} {to}")
    for k in range(count):
        changes = cut(place, source, to, chance)
        looked_at(place, whole)
        if k % 3 == 2 and not place.out.exists():
            changes += cut(place, source, to, chance, "--resume")
            looked_at(place, whole)
        was_there = place.out.exists()
        ended = place.process.run(*place.words(source, to, "--resume"))
        if ended.status:
            assert was_there, ended.err
            assert f"{place.out} exists" in ended.err, ended.err
        elif not was_there and marked(changes, place.out):
            assert "resumed: " in ended.out, ended.out
            assert "resumed: 0 " not in ended.out, ended.out
        assert files_of(place.out) == whole
        place.clear()


@pytest.mark.parametrize(("source", "to"), JOBS[:2])
@pytest.mark.one_in(2)
def test_a_run_that_a_power_cut_ended_is_taken_up(eager: Place, source: str, to: str) -> None:
    cuts(eager, source, to, 9)


@pytest.mark.slow
@pytest.mark.parametrize("marks", ["eager", "place"])
@pytest.mark.parametrize(("source", "to"), JOBS)
def test_hundreds_of_power_cuts(
    request: pytest.FixtureRequest, marks: str, source: str, to: str
) -> None:
    cuts(request.getfixturevalue(marks), source, to, 60)

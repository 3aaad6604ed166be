"""Every fault of the corpus is found by `verify A`, and called by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

import intarsia
from tests.faults.corpus import FAULTS, Fault, Sound, sound_checkpoint
from tests.faults.sound import FORMATS

CASES = [
    pytest.param(
        fault,
        format,
        id=f"{fault.name} ({format})",
        # Each fault in one format is quick, and the formats take turns; the others are for `make test-all`.
        marks=[] if k % len(fault.formats) == at else pytest.mark.slow,
    )
    for k, fault in enumerate(FAULTS)
    for at, format in enumerate(fault.formats)
    if not fault.needs_reference
]


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return sound_checkpoint(tmp_path_factory.mktemp("sound"))


@pytest.mark.parametrize("format", FORMATS)
def test_the_checkpoint_that_faults_are_made_from_is_sound(sound: Sound, format: str) -> None:
    report = intarsia.verify(sound.root / format)
    assert report.sound, report
    assert report.compared > 100


@pytest.mark.parametrize(("fault", "format"), CASES)
@pytest.mark.one_in(2)
def test_a_fault_is_found_and_named(
    sound: Sound, fault: Fault, format: str, tmp_path: Path
) -> None:
    folder = fault.make(sound, format, tmp_path / format)
    report = intarsia.verify(folder)
    kinds = {found.kind for found in report.faults}
    assert not report
    assert fault.kind in kinds, f"called {kinds}: {report}"

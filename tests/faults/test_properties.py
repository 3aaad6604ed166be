"""What a diagnosis states holds, odd models that are sound have no fault, and nothing is lost on a road."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import intarsia
from tests.faults.odd_models import ODD, odd_model
from tests.faults.properties import cases, run


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.one_in(2)
def test_every_statement_of_a_diagnosis_holds(seed: int) -> None:
    case = run("faulty", seed)
    assert not case.wrong, case.what


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.one_in(2)
def test_an_odd_model_that_is_sound_has_no_fault(kind: str, tmp_path: Path) -> None:
    report = intarsia.verify(odd_model(kind, Random(7), tmp_path / "odd"))
    assert report.sound, report


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.one_in(2)
def test_what_torch_saved_is_what_torch_reads_after_a_random_road(seed: int) -> None:
    case = run("roads", seed)
    assert not case.wrong, case.what


@pytest.mark.slow
@pytest.mark.parametrize("which", ["faulty", "sound", "roads"])
def test_the_properties_hold_over_many_cases(which: str) -> None:
    assert not [case for case in cases(which, range(100_000, 100_400), workers=2) if case.wrong]

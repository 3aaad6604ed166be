"""Every fault that a reference shows is found, and called by its name."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

import intarsia
from intarsia.checking.pair.comparison import Comparison
from tests.checkpoints import ROOT
from tests.faults.against import AGAINST, ALL, Against
from tests.faults.reference import MODELS, weights, write


def cases() -> list[ParameterSet]:
    """Every fault in every format; of these, `make test` takes one in turn."""
    found = []
    for k, fault in enumerate(AGAINST):
        quick = fault.formats[k % len(fault.formats)]
        for to in fault.formats:
            marks = () if to == quick else (pytest.mark.slow,)
            found.append(pytest.param(fault, to, id=f"{fault.name}-{to}", marks=marks))
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory):
    """A sound checkpoint of a model in a format, made when it is first asked for."""
    root, made = tmp_path_factory.mktemp("sound"), {}

    def make(model: str, to: str) -> Path:
        if (model, to) not in made:
            made[model, to] = write(
                root / f"{model}-{to}", weights(MODELS[model]), MODELS[model], to
            )
        return made[model, to]

    return make


@pytest.mark.parametrize(("fault", "to"), cases())
@pytest.mark.one_in(2)
def test_a_fault_is_found_and_named(fault: Against, to: str, sound, tmp_path: Path) -> None:
    good = sound(fault.model, to)
    found = intarsia.verify(good, fault.make(good, tmp_path / "faulty", seed=1))
    assert not found
    assert found.faults[0].kind == fault.kind, told(found)
    assert {n for f in found.faults for n in f.tensors} == {
        *(d.tensor for d in found.different), *found.only_in_a, *found.only_in_b,
    }  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=() if k % 4 == 0 else pytest.mark.slow)
        for k, fault in enumerate(AGAINST)
    ],
)
@pytest.mark.one_in(3)
def test_a_fault_of_a_is_named_as_well_as_one_of_b(fault: Against, sound, tmp_path: Path) -> None:
    to = fault.formats[0]
    good = sound(fault.model, to)
    found = intarsia.verify(fault.make(good, tmp_path / "faulty", seed=2), good)
    assert not found
    assert found.faults[0].kind == fault.kind, told(found)


@pytest.mark.parametrize("model", MODELS)
def test_the_same_weights_in_any_format_have_no_fault(model: str, sound) -> None:
    made = [sound(model, to) for to in ALL]
    for a, b in pairwise([*made, made[0]]):
        found = intarsia.verify(a, b)
        assert found.equal
        assert found.faults == ()


def test_the_corpus_is_wide() -> None:
    assert len({fault.kind for fault in AGAINST}) >= 22
    assert {to for fault in AGAINST for to in fault.formats} == {*ALL}


def told(found: Comparison) -> str:
    return "\n".join(f"{f.kind}: {f.text}" for f in found.faults)


def test_every_kind_is_in_the_guide() -> None:
    page = (ROOT / "docs" / "how-to" / "read-a-diagnosis.md").read_text()
    assert [f.kind for f in AGAINST if f"`{f.kind}`" not in page] == []

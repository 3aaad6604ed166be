"""Every fault that a reference shows is found, and called by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

import intarsia
from tests.faults.against import AGAINST, Against
from tests.faults.reference import MODELS, weights, write

CASES = [
    pytest.param(fault, to, id=f"{fault.name}-{to}") for fault in AGAINST for to in fault.formats
]


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


@pytest.mark.parametrize(("fault", "to"), CASES)
def test_a_fault_is_found_and_named(fault: Against, to: str, sound, tmp_path: Path) -> None:
    good = sound(fault.model, to)
    found = intarsia.verify(good, fault.make(good, tmp_path / "faulty", seed=1))
    assert not found
    kinds = [f.kind for f in found.faults]
    assert fault.kind in kinds[:1], "\n".join(f"{f.kind}: {f.text}" for f in found.faults)

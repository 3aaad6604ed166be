"""Flat parameters of FSDP 1 are carried by their keys, and are no parameters of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import intarsia
from intarsia.errors import ForeignNamesError
from tests.checkpoints import llama_config

FLAT = {"_flat_param": torch.arange(10.0), "0._flat_param": torch.arange(42.0)}
ORIGINAL = {"0.weight": torch.arange(22.0), "0.bias": torch.zeros(0)}
"""What `use_orig_params` leaves beside them: the part of one rank."""


@pytest.fixture(params=[{}, ORIGINAL], ids=["alone", "use_orig_params"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    dcp.save({"model": FLAT | request.param}, checkpoint_id=tmp_path / "run", no_dist=True)
    return tmp_path / "run"


def test_what_they_are_is_reported(saved: Path) -> None:
    checked = intarsia.verify(saved)
    assert any("flat parameters of FSDP 1" in note for note in checked.notes)
    assert any("flat parameters" in note for note in intarsia.inspect(saved).notes)


@pytest.mark.parametrize("section", [None, "."])
def test_no_model_of_the_hub_is_made_of_them(saved: Path, section: str | None) -> None:
    with pytest.raises(ForeignNamesError, match=r"`.*_flat_param` and 1 more are flat parameters"):
        intarsia.convert(saved, saved.parent / "hf", to="hf", section=section)
    assert not (saved.parent / "hf").exists()


def test_a_configuration_changes_nothing(saved: Path) -> None:
    with pytest.raises(ForeignNamesError, match="flat parameters"):
        intarsia.convert(saved, saved.parent / "hf", to="hf", config=llama_config())


def test_no_model_is_filled_with_them(saved: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 7))
    with pytest.raises(ForeignNamesError, match="flat parameters"):
        intarsia.load(saved, model, strict=False)


def test_torch_reads_what_carries_them(saved: Path) -> None:
    intarsia.convert(saved, saved.parent / "again", to="dcp", section=".")
    assert intarsia.verify(saved, saved.parent / "again", section=".")
    state = {"model": {name: torch.full_like(x, -1.0) for name, x in FLAT.items()}}
    dcp.load(state, checkpoint_id=saved.parent / "again", no_dist=True)
    assert all(torch.equal(state["model"][name], x) for name, x in FLAT.items())
    state = {name: torch.full_like(x, -1.0) for name, x in FLAT.items()}
    intarsia.load(saved, state, strict=False)
    assert all(torch.equal(state[name], x) for name, x in FLAT.items())


def test_a_matrix_of_that_name_is_a_parameter(tmp_path: Path) -> None:
    dcp.save({"a.flat_param": torch.ones(2, 3)}, checkpoint_id=tmp_path / "run", no_dist=True)
    intarsia.convert(tmp_path / "run", tmp_path / "hf", to="hf")
    assert intarsia.verify(tmp_path / "run", tmp_path / "hf")

"""Models of Megatron-core that are no model of a hub family, and look like one by some of their names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.errors import FamilyError
from intarsia.format.registry import read_manifest
from tests.checkpoints import ROOT, environment

pytestmark = pytest.mark.megatron


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("megatron")
    command = [sys.executable, "-m", "tests.journeys.megatron_others", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, env=environment(), capture_output=True)
    return folder


@pytest.mark.parametrize("kind", ["layer_norm", "squared_relu", "bert", "t5"])
@pytest.mark.one_in(4)
def test_a_model_that_is_no_hub_familys_is_sound_and_of_no_family(kind: str, saved: Path) -> None:
    assert read_manifest(saved / kind, None).family is None
    found = intarsia.verify(saved / kind)
    assert found, found.faults
    assert any("do not determine the family" in note for note in found.notes)
    for to in ("hf", "torch_dist"):
        with pytest.raises(FamilyError, match="no model configuration"):
            intarsia.convert(saved / kind, saved / f"{kind}-{to}", to=to)


def test_the_same_model_without_what_sets_them_apart_is_a_llama(saved: Path) -> None:
    assert read_manifest(saved / "llama", None).family == "llama"
    intarsia.convert(saved / "llama", saved / "hub", to="hf")
    assert intarsia.open(saved / "hub")["model.norm.weight"][:].dtype == torch.float32

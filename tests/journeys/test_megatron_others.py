"""Models of Megatron-core that are no model of a hub family, and look like one by some of their names."""

from __future__ import annotations

import json
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


def test_a_residual_that_no_hub_family_has_needs_a_configuration_and_stays(saved: Path) -> None:
    source = saved / "residual_after_norm"
    assert intarsia.verify(source)
    with pytest.raises(FamilyError, match="apply_residual_connection_post_layernorm=True"):
        intarsia.convert(source, saved / "none", to="hf")
    intarsia.convert(source, saved / "other_mesh", to="torch_dist", mesh="tp=2")
    assert intarsia.verify(source, saved / "other_mesh")


def test_experts_and_halves_that_are_stored_apart_make_the_same_configuration(saved: Path) -> None:
    source = saved / "experts_apart"
    assert intarsia.verify(source)
    intarsia.convert(source, saved / "mixture", to="hf")
    config = json.loads((saved / "mixture/config.json").read_text())
    assert (config["model_type"], config["num_local_experts"]) == ("mixtral", 3)
    assert config["intermediate_size"] == 20
    assert intarsia.verify(source, saved / "mixture")

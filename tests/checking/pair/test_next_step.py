"""Two steps of one run are not equal, and `verify` points to the command that measures them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.checkpoints import intarsia, llama_config, model, write_dcp, write_hf

CONFIG = llama_config()
WEIGHTS = model(CONFIG, torch.float32)


def trained(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One step further."""
    random = torch.Generator().manual_seed(7)
    return {k: x + 1e-3 * torch.randn(x.shape, generator=random) for k, x in weights.items()}


@pytest.fixture(scope="module")
def a(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("steps") / "a", WEIGHTS, CONFIG)


def test_two_steps_of_training_are_for_diff(a: Path, tmp_path: Path) -> None:
    b = write_hf(tmp_path / "b", trained(WEIGHTS), CONFIG)
    answer = intarsia("verify", a, b)
    assert answer.status == 1
    assert answer.out.splitlines()[-1].startswith("next: if one of the two was trained further")
    assert "`intarsia diff A B`" in answer.out
    assert "intarsia diff A B" in intarsia("verify", a, b, "--json").json["next"]


def zeros(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return weights | {"model.norm.weight": torch.zeros(20)}


def lost(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k: x for k, x in trained(weights).items() if k != "model.norm.weight"}


def zeros_after_training(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return zeros(trained(weights))


@pytest.mark.parametrize("change", [dict, zeros, lost, zeros_after_training])
@pytest.mark.one_in(2)
def test_what_is_equal_or_has_a_cause_is_not(a: Path, tmp_path: Path, change) -> None:
    b = write_hf(tmp_path / "b", change(WEIGHTS), CONFIG)
    assert intarsia("verify", a, b, "--json").json["next"] is None
    assert "intarsia diff" not in intarsia("verify", a, b).out


def test_where_nothing_explains_the_moments_what_to_look_at_is_said(tmp_path: Path) -> None:
    both = []
    for seed in (5, 6):
        random = torch.Generator().manual_seed(seed)
        state = {k: {"exp_avg": torch.randn(x.shape, generator=random)} for k, x in WEIGHTS.items()}
        held = {**WEIGHTS, "optimizer": {"state": state}}
        both.append(write_dcp(tmp_path / str(seed), held))
    answer = intarsia("verify", *both)
    assert answer.status == 1
    assert answer.out.splitlines()[-1].startswith("next: look at the files and bytes that differ")

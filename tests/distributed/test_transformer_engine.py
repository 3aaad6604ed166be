"""TransformerEngine's layers under FSDP2 x tensor parallelism, through torch's own DCP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.distributed.ranks import on_ranks_with
from tests.distributed.transformer_engine_trainer import train_and_move
from tests.live.transformer_engine_model import SEED, Model, train
from tests.versions import since

# FSDP2 of torch 2.11 forgets what tensor parallelism has interleaved, which is refused.
pytestmark = since("torch", "2.12")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    on_ranks_with("tests.live.transformer_engine_loaded", 4, train_and_move, folder)
    return folder


def read(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a DCP checkpoint, whole, by its path in the state."""
    file = folder.with_suffix(".pt")
    dcp_to_torch_save(folder, file)
    found: dict[str, torch.Tensor] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{path}/{key}", inner)
        elif isinstance(value, torch.Tensor):
            found[path] = value

    walk("", torch.load(file))
    return found


@pytest.fixture(scope="module")
def saved(trained: Path) -> dict[str, torch.Tensor]:
    return read(trained / "saved")


def one_process(steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    SEED[0] = 1
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    train(model, optimizer, steps)
    return model, optimizer


def plain(param: torch.Tensor) -> torch.Tensor:
    """A parameter's elements, without TransformerEngine's class for stacked ones."""
    return param.detach().clone()


def test_whole_tensors_are_those_of_one_process(saved: dict[str, torch.Tensor]) -> None:
    model, optimizer = one_process(2)
    for name, param in model.named_parameters():
        torch.testing.assert_close(saved[f"/model/{name}"], plain(param), rtol=1e-4, atol=1e-5)
        for kind, value in optimizer.state[param].items():
            at = f"/optim/state/{name}/{kind}"
            torch.testing.assert_close(saved[at], value, rtol=1e-3, atol=1e-6)


def test_every_parameter_but_the_empty_one_has_its_moments(saved: dict[str, torch.Tensor]) -> None:
    model, _ = one_process(0)
    expected = {f"/model/{name}" for name, _ in model.named_parameters()} | {
        f"/optim/state/{name}/{kind}"
        for name, param in model.named_parameters()
        for kind in ("step", "exp_avg", "exp_avg_sq")
        if param.numel()
    }
    assert {name for name in saved if "param_groups" not in name} == expected


@pytest.mark.parametrize("mesh", ["2x2", "1x4", "4x1"])
def test_another_mesh_gets_the_same_bits(
    trained: Path, saved: dict[str, torch.Tensor], mesh: str
) -> None:
    arrived = read(trained / f"at-{mesh}")
    assert arrived.keys() == saved.keys()
    differing = [name for name, x in saved.items() if not x.equal(arrived[name])]
    assert not differing


def test_training_goes_on_as_in_one_process(trained: Path) -> None:
    found = read(trained / "trained-on")
    model, optimizer = one_process(2)
    train(model, optimizer, 1)
    for name, param in model.named_parameters():
        torch.testing.assert_close(found[f"/model/{name}"], plain(param), rtol=1e-4, atol=1e-4)


def test_what_is_saved_in_the_background_is_what_was(
    trained: Path, saved: dict[str, torch.Tensor]
) -> None:
    kept = read(trained / "saved-with-extra")
    assert not [name for name, x in saved.items() if not x.equal(kept[name])]


def test_extra_state_is_kept_by_choice(trained: Path, saved: dict[str, torch.Tensor]) -> None:
    kept = read(trained / "saved-with-extra")
    assert not [name for name in saved if name.endswith("_extra_state")]
    assert kept["/model/up._extra_state"].tolist() == [0, 1]
    assert len([name for name in kept if name.endswith("_extra_state")]) > 8

"""The state of an optimizer in a dict has the names that torch gives it where it is the model's alone, else those of the dict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import intarsia

Adam = torch.optim.AdamW


def stepped(*models: nn.Module) -> Adam:
    params = [param for model in models for param in model.parameters()]
    optimizer = Adam(params, lr=0.25)
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer.step()
    return optimizer


def moments(optimizer: Adam) -> list[dict[str, Any]]:
    return [{k: x.tolist() for k, x in state.items()} for state in optimizer.state.values()]


BESIDE: dict[str, Any] = {
    "average": {"ema": nn.Linear(3, 2)},
    "number": {"alpha": torch.tensor(0.5)},
    "all": {"ema": nn.Linear(3, 2), "step": 7, "seen": torch.tensor(9)},
}


@pytest.mark.parametrize("kind", BESIDE)
def test_torch_and_we_load_a_model_and_its_optimizer_with_what_lies_beside(
    kind: str, tmp_path: Path
) -> None:
    model = nn.Linear(3, 2)
    optimizer = stepped(model)
    intarsia.save(tmp_path / "out", {"model": model, **BESIDE[kind], "optimizer": optimizer})
    assert bool(intarsia.verify(tmp_path / "out"))

    again = nn.Linear(3, 2)
    other = Adam(again.parameters(), lr=0.5)
    weights, state = get_state_dict(again, other)
    into = {"model": weights, "optimizer": state}
    dcp.load(into, checkpoint_id=tmp_path / "out", no_dist=True)
    set_state_dict(again, other, model_state_dict=weights, optim_state_dict=into["optimizer"])
    assert torch.equal(again.weight, model.weight)
    assert moments(other) == moments(optimizer)

    ours = nn.Linear(3, 2)
    third = Adam(ours.parameters(), lr=0.5)
    beside = {k: nn.Linear(3, 2) if k == "ema" else x for k, x in BESIDE[kind].items()}
    intarsia.load(tmp_path / "out", into={"model": ours, **beside, "optimizer": third})
    assert torch.equal(ours.weight, model.weight)
    assert moments(third) == moments(optimizer)


@pytest.mark.parametrize("keys", [("model", "head"), ("head",), ("ema",)])
def test_an_optimizer_that_steps_another_model_too_comes_back(
    keys: tuple[str, ...], tmp_path: Path
) -> None:
    models = {"model": nn.Linear(3, 2), "head": nn.Linear(2, 3), "ema": nn.Linear(3, 2)}
    optimizer = stepped(*(models[key] for key in keys))
    intarsia.save(tmp_path / "out", {**models, "optimizer": optimizer})
    again = {"model": nn.Linear(3, 2), "head": nn.Linear(2, 3), "ema": nn.Linear(3, 2)}
    other = stepped(*(again[key] for key in keys))
    intarsia.load(tmp_path / "out", into={**again, "optimizer": other})
    assert all(torch.equal(again[key].weight, models[key].weight) for key in models)
    assert moments(other) == moments(optimizer)


def test_two_models_with_names_of_frameworks_keep_the_state_of_each(tmp_path: Path) -> None:
    models = {"model": nn.Linear(3, 2), "module": nn.Linear(3, 2)}
    optimizer = stepped(models["model"])
    intarsia.save(tmp_path / "out", {**models, "optimizer": optimizer})
    with intarsia.open(tmp_path / "out", section=".") as found:
        assert "optimizer.exp_avg.model.weight" in [*found.keys()]


@pytest.mark.slow  # it imports Transformers
def test_each_of_two_models_of_a_family_is_loaded_with_the_settings_of_its_own_optimizer(
    tmp_path: Path,
) -> None:
    from tests.live.saving.test_nesting import llama

    models = {"model": llama(1), "critic": llama(2)}
    optimizers = {key: stepped(model) for key, model in models.items()}
    optimizers["critic"].param_groups[0]["lr"] = 0.125
    saved = {f"optimizer_of_{key}": each for key, each in optimizers.items()}
    intarsia.save(tmp_path / "out", {**models, **saved})
    for key, optimizer in optimizers.items():
        again = llama(9)
        other = Adam(again.parameters(), lr=0.5)
        intarsia.load(tmp_path / "out", again, other, section=f"{key},optimizer")
        assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        assert moments(other) == moments(optimizer)

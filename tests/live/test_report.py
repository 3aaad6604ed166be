"""What a load and a save report: how much was carried, with which settings, and what was left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import intarsia
from intarsia.errors import CoverageError, UsageError


def trained(lr: float = 0.125) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Two layers in two groups after a step, and a parameter that was never stepped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model.register_parameter("spare", nn.Parameter(torch.ones(5)))
    first, second = [*model[0].parameters()], [*model[1].parameters(), model.spare]
    optimizer = torch.optim.AdamW(
        [{"params": first, "lr": lr}, {"params": second, "lr": torch.tensor(2 * lr)}], foreach=False
    )
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model[1](model[0](torch.ones(2, 3))).sum().backward()  # type: ignore[index]
    optimizer.step()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model, optimizer = trained()
    step(model, optimizer)
    intarsia.save(tmp_path / "ck", model, optimizer)
    return tmp_path / "ck"


def test_a_save_counts_tensors_state_settings_and_extra(tmp_path: Path) -> None:
    model, optimizer = trained()
    step(model, optimizer)
    extra = {"epoch": 3, "data": {"at": 7}}
    for report in (
        intarsia.save(tmp_path / "now", model, optimizer, extra),
        intarsia.save(tmp_path / "aside", model, optimizer, extra, background=True).wait(),
    ):
        assert (report.tensors, report.state_tensors) == (5, 4 * 3)
        assert [float(g["lr"]) for g in report.hyperparameters] == [0.125, 0.25]
        assert report.hyperparameters[1]["betas"] == (0.9, 0.999)
        assert report.extra == ["data", "epoch"]
        lines = str(report).splitlines()
        assert lines[0].startswith("5 tensors and 12 of optimizer state to ")
        assert lines[1].startswith("group 0  lr=0.125, betas=(0.9, 0.999), ")
        assert lines[2].startswith("group 1  lr=0.25, ")
        assert lines[3] == "extra    data, epoch"


def test_a_load_counts_tensors_state_and_settings(saved: Path) -> None:
    model, optimizer = trained(lr=0.5)
    report = intarsia.load(saved, model, optimizer)
    assert report.complete
    assert (report.tensors, report.state_tensors) == (5, 4 * 3)
    assert report.held_bytes == 4 * (3 * 26 + 5)
    assert [float(g["lr"]) for g in report.hyperparameters] == [0.125, 0.25]
    assert report.never_stepped == ["spare"]
    assert str(report).splitlines()[0].startswith("5 tensors and 12 of optimizer state from ")
    assert "group 1  lr=0.25, " in str(report)
    alone = intarsia.load(saved, trained()[0])
    assert (alone.tensors, alone.state_tensors, alone.hyperparameters) == (5, 0, [])


def test_state_that_a_checkpoint_lost_is_not_complete(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    step(model, optimizer)
    held = {f"state.{n}.{k}": x for n, p in model.named_parameters() for k, x in optimizer.state[p].items() if n != "1.bias"}  # fmt: skip
    saved = {"model": model.state_dict(), "optimizer": _nested(held)}
    dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)
    again = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    fresh = torch.optim.AdamW(again.parameters(), lr=0.5)
    with pytest.raises(CoverageError, match="has no optimizer state of 1 parameters"):
        intarsia.load(tmp_path, again, fresh, hyperparameters="mine")
    report = intarsia.load(tmp_path, again, fresh, strict=False)
    assert not report.complete
    assert set(report.kept) == {"optimizer state of 1.bias", "hyperparameters of group 0"}
    assert fresh.param_groups[0]["lr"] == 0.5


def _nested(flat: dict[str, torch.Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = {"state": {}}
    for name, x in flat.items():
        param, _, kind = name.removeprefix("state.").rpartition(".")
        found["state"].setdefault(param, {})[kind] = x
    return found


def test_a_module_that_does_not_hand_out_all_is_not_saved(tmp_path: Path) -> None:
    class Shy(nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination[f"{prefix}weight"] = self.weight

    with pytest.raises(
        UsageError, match=r"1 tensors of the module are not in its state_dict\(\): bias"
    ):
        intarsia.save(tmp_path / "ck", Shy(2, 3))
    assert not (tmp_path / "ck").exists()
    intarsia.save(tmp_path / "ck", Shy(2, 3).state_dict())

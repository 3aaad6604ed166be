"""Training in Megatron-core that stops, is converted to another format and back, and goes on as if it never had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from tests.parity.test_megatron_core_loads import launch, make

pytestmark = [pytest.mark.slow, pytest.mark.megatron]

STEPS = "tests.journeys.megatron_steps"


def test_training_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    model = make(tmp_path / "hf", "qwen3", torch.bfloat16, vocab_size=100, num_hidden_layers=2)
    saved = tmp_path / "saved"
    launch(STEPS, 1, "train", model.folder, saved)
    given: dict[str, Any] = {"config": model.config, "megatron_spec": "local"}
    intarsia.convert(saved, tmp_path / "dcp", to="dcp", mesh="fsdp=2", config=model.config)
    intarsia.convert(saved, tmp_path / "hub", to="hf", config=model.config)
    back = {
        "again": (saved, "tp=2"),
        "from-dcp": (tmp_path / "dcp", ""),
        "from-hub": (tmp_path / "hub", "pp=2"),
    }
    for name, (source, mesh) in back.items():
        intarsia.convert(source, tmp_path / name, to="torch_dist", mesh=mesh, **given)
        assert intarsia.verify(saved, tmp_path / name, config=model.config)
    launch(STEPS, 1, "resume", model.folder, *(tmp_path / name for name in back))
    unstopped = torch.load(tmp_path / "saved.end")
    for name in back:
        found = torch.load(tmp_path / f"{name}.end")
        assert found.keys() == unstopped.keys()
        for what, want in unstopped.items():
            alike = torch.equal if isinstance(want, torch.Tensor) else dict.__eq__
            assert alike(found[what], want), (name, what, found[what], want)
    assert unstopped["group 0"]["step"] == 4
    assert unstopped["group 0"]["max_lr"] == 1e-3

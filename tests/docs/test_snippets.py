"""What the documents show works as they show it."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from intarsia.cli.demo_model import write_model
from tests.distributed.small_model import Small, step
from tests.live import transformer_engine_model as te

ROOT = Path(__file__).parents[2]


class Loader:
    """A data loader with a state, as torchdata's."""

    def __init__(self) -> None:
        self.at = 12

    def state_dict(self) -> dict[str, int]:
        found = {"at": self.at}
        self.at = 0
        return found

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.S)


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "Qwen3-30B-A3B", seed=1)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(ROOT / "README.md", "python")
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert scope["plan"].proven  # type: ignore[attr-defined]


def test_transformer_engine_is_saved_and_loaded_as_its_page_shows(tmp_path: Path) -> None:
    """On one rank; `tests/distributed` has the meshes."""
    page = ROOT / "docs/how-to/transformer-engine.md"
    model_of, batch = te.Model, te.whole("input", 6, 12)
    scope: dict[str, Any] = {"build": model_of, "batch": batch, "device": "cpu", "fsdp": 1, "tp": 1}
    scope["folder"] = tmp_path / "saved"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for code in blocks(page, "python"):
            exec(compile(code, str(page), "exec"), scope)
    finally:
        dist.destroy_process_group()
    assert (tmp_path / "saved" / ".metadata").is_file()
    saved, loaded = scope["trained"], scope["model"]
    assert saved is not loaded
    for a, b in zip(saved.parameters(), loaded.parameters(), strict=True):
        assert a.to_local().equal(b.to_local())


def test_a_live_model_is_loaded_and_saved_as_its_page_shows(tmp_path: Path) -> None:
    """In one process; `tests/distributed` has the meshes."""
    page = ROOT / "docs/how-to/load-and-save.md"
    save_file(Small().state_dict(), tmp_path / "model.safetensors")
    scope: dict[str, Any] = {
        "torch": torch,
        "build": Small,
        "checkpoint": tmp_path,
        "run": tmp_path / "run",
        "train": lambda model, optimizer: step(model, optimizer, 1),
        "loader": Loader(),
    }
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), scope)
    assert scope["position"] == 4
    assert scope["loader"].at == 12
    assert scope["extra"]["generators"]["python"] == random.getstate()
    assert torch.equal(scope["extra"]["generators"]["torch"], torch.get_rng_state())


def test_the_example_of_resuming_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "Qwen3-30B-A3B", seed=1)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(ROOT / "docs" / "how-to" / "resume-a-conversion.md", "python")
    exec(compile(f"import intarsia\n{code}", "resume-a-conversion.md", "exec"), {})
    assert (tmp_path / "sharded" / ".metadata").is_file()

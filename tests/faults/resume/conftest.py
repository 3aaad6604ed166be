"""A source, what a whole run makes of it, and windows so small that a run has many steps."""

from __future__ import annotations

from pathlib import Path

import pytest

import intarsia
from tests.budgets import in_steps_of
from tests.checkpoints import files_of, model, write_hf
from tests.faults.resume.interrupted import CONFIG, OPTIONS


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    in_steps_of(monkeypatch, 2048)


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "hf", model(CONFIG), CONFIG)


@pytest.fixture
def whole(src: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of an uninterrupted run."""
    intarsia.convert(src, tmp_path / "whole", **OPTIONS)
    return files_of(tmp_path / "whole")

"""The page of model types: what holds for each, and why not where it does not."""

from __future__ import annotations

from pathlib import Path

from tests.sweep.results import Results

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "models.md"


def page(results: Results) -> str:
    return ""

"""Budgets that cut work small, so that a small model has many windows and steps."""

from __future__ import annotations

import pytest

from intarsia.run.budget import Budget


def in_steps_of(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Have workers take so many bytes in hand at once, in one window."""
    for name in ("window_bytes", "step_bytes"):
        monkeypatch.setattr(Budget, name, property(lambda _: nbytes))

"""Values that are made when they are asked for: each once, in the order of what they are made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.planning.made_when_asked import MadeWhenAsked
from intarsia.planning.whole_tensor import WholeTensor
from tests.checkpoints import write_hf


def test_each_value_is_made_once_whoever_asks_first() -> None:
    made: list[int] = []
    found = MadeWhenAsked({"a": 1, "b": 2, "c": 3}, lambda n: made.append(n) or [n])
    assert "b" in found
    assert len(found) == 3
    assert [*found] == ["a", "b", "c"]
    assert not made
    b = found["b"]
    assert made == [2]
    assert found["b"] is b
    assert found.get("x") is None
    assert [*found.values()] == [[1], [2], [3]]
    assert made == [2, 1, 3]
    assert found["a"] is dict(found)["a"] is dict(found.items())["a"]
    assert dict(found)["b"] is b
    assert found == {"a": [1], "b": [2], "c": [3]}
    assert made == [2, 1, 3]


def test_opening_a_checkpoint_makes_no_stored_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hf(tmp_path / "m", {"a.weight": torch.ones(2, 2), "b": torch.ones(3)}, {})
    asked: list[str] = []
    make = WholeTensor.stored
    monkeypatch.setattr(
        WholeTensor, "stored", lambda s, *rule: asked.append(s.name) or make(s, *rule)
    )
    with intarsia.open(tmp_path / "m") as checkpoint:
        assert [*checkpoint] == ["a.weight", "b"]
        assert checkpoint["b"].shape == (3,)
        assert not asked
        assert torch.equal(checkpoint["b"][...], torch.ones(3))
        assert asked == ["b"]

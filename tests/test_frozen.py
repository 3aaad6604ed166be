"""A frozen value behaves as the dataclass that it is."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass, fields, replace

import pytest

from intarsia.frozen import frozen


@frozen
class Quick:
    a: int
    b: str = "b"
    c: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Usual:
    a: int
    b: str = "b"
    c: tuple[int, ...] = ()


def test_it_is_made_as_the_usual_one() -> None:
    for made in (Quick(1), Quick(1, c=(2,)), Quick(a=1, b="x", c=(3,)), replace(Quick(1), b="y")):
        usual = Usual(made.a, made.b, made.c)
        assert str(made) == str(usual).replace("Usual", "Quick")
        assert hash(made) == hash(usual)
        assert made == pickle.loads(pickle.dumps(made)) != usual
    assert [f.name for f in fields(Quick)] == ["a", "b", "c"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        Quick()  # type: ignore[call-arg]


def test_it_stays_as_it_was_made() -> None:
    made = Quick(1)
    with pytest.raises(FrozenInstanceError):
        made.a = 2  # type: ignore[misc]
    assert not hasattr(made, "__dict__")

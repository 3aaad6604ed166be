"""A frozen value behaves as the dataclass that it is."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import pytest

from intarsia.frozen import frozen, frozen_open


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


@frozen_open
class QuickOpen:
    a: int
    b: str = "b"
    c: tuple[int, ...] = ()

    @cached_property
    def twice(self) -> int:
        return 2 * self.a


def test_it_is_made_as_the_usual_one() -> None:
    for made in (Quick(1), Quick(1, c=(2,)), Quick(a=1, b="x", c=(3,)), replace(Quick(1), b="y")):
        usual = Usual(made.a, made.b, made.c)
        assert str(made) == str(usual).replace("Usual", "Quick")
        assert hash(made) == hash(usual)
        assert made == pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) != usual
    assert [f.name for f in fields(Quick)] == ["a", "b", "c"]
    assert str(inspect.signature(Quick)) == str(inspect.signature(Usual))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        Quick()  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [Quick, QuickOpen])
def test_it_stays_as_it_was_made(kind: Any) -> None:
    made = kind(1)
    for change in (lambda: setattr(made, "a", 2), lambda: setattr(made, "other", 2), lambda: delattr(made, "a")):  # fmt: skip
        with pytest.raises(FrozenInstanceError):
            change()
    assert made == kind(1)
    assert hasattr(made, "__dict__") == (kind is QuickOpen)


def test_one_without_slots_keeps_what_it_has_computed() -> None:
    made = QuickOpen(2)
    assert (made.twice, made.__dict__["twice"]) == (4, 4)
    assert made == QuickOpen(2) == pickle.loads(pickle.dumps(made)) != QuickOpen(3)


def _slots(cls: type) -> type:
    return dataclass(frozen=True, slots=True)(cls)


def _no_slots(cls: type) -> type:
    return dataclass(frozen=True)(cls)


@pytest.mark.parametrize(
    ("quick", "usual"), [(frozen, _slots), (frozen_open, _no_slots)], ids=["slots", "open"]
)
def test_every_kind_of_field_and_own_methods_are_as_usual(
    quick: Callable[[type], Any], usual: Callable[[type], Any]
) -> None:
    def made_by(decorator: Callable[[type], Any]) -> Any:
        class Held:
            """A value."""

            known: ClassVar[int] = 7
            name: str
            aside: object = field(default=None, compare=False, repr=False)
            listed: list[int] = field(default_factory=list)
            marked: int = field(default=3, hash=False)

            def __post_init__(self) -> None:
                if not self.name:
                    raise ValueError("no name")

        class Worded:
            """A value that shows and compares itself."""

            name: str

            def __repr__(self) -> str:
                return f"<{self.name}>"

            def __eq__(self, other: object) -> bool:
                return isinstance(other, type(self))

            def __hash__(self) -> int:
                return 1

        class Compared:
            """A value that compares itself, and is hashed by its fields."""

            name: str

            def __eq__(self, other: object) -> bool:
                return True

        class Empty:
            """A value without fields."""

        found = tuple(map(decorator, (Held, Worded, Compared, Empty)))
        held, worded, compared, empty = found
        one, other = held("x"), held("x", aside=1)
        one.listed.append(1)
        told = [
            str(one), str(other), one == other, other == held("x"), other == held("x", marked=4), other.listed, held.known,
            str(worded("y")), worded("y") == worded("z"), hash(worded("y")), compared("a") == compared("b"),
            hash(compared("a")) == hash(compared("a")), empty() == empty(), hash(empty()), str(empty()),
            hash(held("x", 1, ())) == hash(held("x", 2, (), 4)), held.__match_args__, [f.name for f in fields(held)], str(inspect.signature(held)).count("="),
        ]  # fmt: skip
        for wrong in (lambda: held(""), lambda: held(), lambda: hash(one), lambda: held("a", 1, [], 1, 5)):  # fmt: skip
            with pytest.raises((ValueError, TypeError)) as error:
                wrong()
            told.append(str(error.value).replace("Held.", ""))
        return told

    assert [str(x).rpartition(".")[2] for x in made_by(quick)] == [
        str(x).rpartition(".")[2] for x in made_by(usual)
    ]


def test_usual_ones_may_inherit_from_it() -> None:
    @dataclass(frozen=True, slots=True)
    class More(Quick):
        d: int = 4

    assert More(1) == More(1, "b", (), 4) != Quick(1)
    with pytest.raises(FrozenInstanceError):
        More(1).a = 2  # type: ignore[misc]

"""Frozen values: boxes, pieces, chunks, stored tensors, and what else is made once and never changed.

`@frozen` is `@dataclass(frozen=True, slots=True)` and `@frozen_open` is `@dataclass(frozen=True)`, but quicker.
The usual ones compile six functions for each class, one by one, which is most of what an import costs;
these compile three at once.  With slots the constructor takes half the time: the usual one looks up
`object.__setattr__` for every field, this one calls each slot's own setter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
_ANEW: Any = object()
"""The default of a field whose value is made anew each time."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots."""
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    return _completed(made, cls, {"__getstate__": _state, "__setstate__": _restore}, slots=True)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_open(cls: type[T]) -> type[T]:
    """A frozen dataclass without slots: it can keep what it has computed (`cached_property`)."""
    return _completed(dataclass(init=False, repr=False, eq=False)(cls), cls, {}, slots=False)


def _completed(made: type[T], cls: type[T], more: dict[str, Any], *, slots: bool) -> type[T]:
    """The class with the methods of a frozen dataclass, but for those that it has itself."""
    listed = fields(made)  # type: ignore[arg-type]
    methods = _compiled(made, listed, slots=slots) | _refusals(made, listed)
    for name, method in (methods | {"__repr__": _repr} | more).items():
        if cls.__dict__.get(name) is None:
            setattr(made, name, method)
    made.__dataclass_params__.frozen = True  # type: ignore[attr-defined]
    return made


def _compiled(made: type, listed: Sequence[Field[Any]], *, slots: bool) -> dict[str, Any]:
    """The methods that are called often: the constructor, equality and the hash."""
    given: dict[str, Any] = {"_anew": _ANEW}
    lines = [] if slots else ["_held = self.__dict__"]
    for f in listed:
        assert f.init, f"{made.__name__}.{f.name} is not given"
        assert not f.kw_only, f"{made.__name__}.{f.name} is given by its name alone"
        value = f.name
        if f.default_factory is not MISSING:
            given[f"_new_{f.name}"] = f.default_factory
            value = f"_new_{f.name}() if {f.name} is _anew else {f.name}"
        if slots:
            given[f"_set_{f.name}"] = getattr(made, f.name).__set__
        lines.append(f"_set_{f.name}(self, {value})" if slots else f"_held[{f.name!r}] = {value}")
    lines += ["self.__post_init__()"] if hasattr(made, "__post_init__") else []
    compared = [f.name for f in listed if f.compare]
    hashed = [f.name for f in listed if (f.compare if f.hash is None else f.hash)]
    body = "\n ".join(lines or ["pass"])
    text = f"""
def __init__(self, {", ".join(f.name for f in listed)}):
 {body}
def __eq__(self, other):
 if other.__class__ is self.__class__:
  return ({_values("self", compared)}) == ({_values("other", compared)})
 return NotImplemented
def __hash__(self):
 return hash(({_values("self", hashed)}))
"""
    found: dict[str, Any] = {}
    exec(text, given, found)
    init = found["__init__"]
    defaults = [_ANEW if f.default_factory is not MISSING else f.default for f in listed]
    init.__defaults__ = tuple(value for value in defaults if value is not MISSING) or None
    init.__annotations__ = {f.name: f.type for f in listed} | {"return": None}
    for method in found.values():
        method.__qualname__ = f"{made.__qualname__}.{method.__name__}"
    return found


def _values(of: str, names: Sequence[str]) -> str:
    return "".join(f"{of}.{name}, " for name in names)


def _refusals(made: Any, listed: Sequence[Field[Any]]) -> dict[str, Any]:
    """The methods that let nobody change a value."""
    names = frozenset(f.name for f in listed)

    def assign(self: Any, name: str, value: Any) -> None:
        if type(self) is made or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    return {"__setattr__": assign, "__delattr__": delete}


@recursive_repr()
def _repr(self: Any) -> str:
    held = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({held})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for f, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)

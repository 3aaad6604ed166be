"""Frozen values: boxes, pieces, chunks, stored tensors, and what else is made once and never changed.

`@frozen` is `@dataclass(frozen=True, slots=True)` and `@frozen_open` is `@dataclass(frozen=True)`, but quicker.
The usual ones compile six functions for each class, which is most of what an import costs; these compile
three for all classes that have as many fields, and give each class copies with its names.  With slots the constructor takes half the time: the usual one looks up
`object.__setattr__` for every field, this one calls each slot's own setter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
_ANEW: Any = object()
"""The default of a field whose value is made each time."""


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
    for k, f in enumerate(listed):
        assert f.init, f"{made.__name__}.{f.name} is not given"
        assert not f.kw_only, f"{made.__name__}.{f.name} is given by its name alone"
        if f.default_factory is not MISSING:
            given[f"_new_{k}"] = f.default_factory
        if slots:
            given[f"_set_{k}"] = getattr(made, f.name).__set__
    anew = tuple(f.default_factory is not MISSING for f in listed)
    compared = [f.name for f in listed if f.compare]
    hashed = [f.name for f in listed if (f.compare if f.hash is None else f.hash)]
    init = _constructor(anew, slots=slots, checked=hasattr(made, "__post_init__"))
    found = {
        "__init__": _named(init, [f.name for f in listed], given),
        "__eq__": _named(_equality(len(compared)), compared, given),
        "__hash__": _named(_hash(len(hashed)), hashed, given),
    }
    defaults = [_ANEW if f.default_factory is not MISSING else f.default for f in listed]
    found["__init__"].__defaults__ = tuple(x for x in defaults if x is not MISSING) or None
    found["__init__"].__annotations__ = {f.name: f.type for f in listed} | {"return": None}
    for method in found.values():
        method.__qualname__ = f"{made.__qualname__}.{method.__name__}"
    return found


@cache
def _constructor(anew: tuple[bool, ...], *, slots: bool, checked: bool) -> CodeType:
    lines = [] if slots else ["_held = self.__dict__"]
    for k, made_anew in enumerate(anew):
        value = f"_new_{k}() if _{k} is _anew else _{k}" if made_anew else f"_{k}"
        lines.append(f"_set_{k}(self, {value})" if slots else f"_held['_{k}'] = {value}")
    lines += ["self.__post_init__()"] if checked else []
    words = ", ".join(f"_{k}" for k in range(len(anew)))
    return _code("\n ".join([f"def __init__(self, {words}):", *(lines or ["pass"])]))


@cache
def _equality(count: int) -> CodeType:
    return _code(f"""def __eq__(self, other):
 if other.__class__ is self.__class__:
  return ({_values("self", count)}) == ({_values("other", count)})
 return NotImplemented""")


@cache
def _hash(count: int) -> CodeType:
    return _code(f"def __hash__(self): return hash(({_values('self', count)}))")


def _values(of: str, count: int) -> str:
    return "".join(f"{of}._{k}, " for k in range(count))


def _code(text: str) -> CodeType:
    """A function that calls its fields `_0`, `_1`, …: to compile one for each class takes far longer than to name the fields in a copy."""
    (code,) = (x for x in compile(text, "<frozen>", "exec").co_consts if isinstance(x, CodeType))
    return code


def _named(code: CodeType, names: Sequence[str], given: dict[str, Any]) -> FunctionType:
    """A function made of `code`, in which the fields have their names."""
    real = {f"_{k}": name for k, name in enumerate(names)}
    named = code.replace(
        co_names=tuple(real.get(x, x) for x in code.co_names),
        co_varnames=tuple(real.get(x, x) for x in code.co_varnames),
        co_consts=tuple(real.get(x, x) for x in code.co_consts),
    )
    return FunctionType(named, given)


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

"""Frozen values that are made by the hundred thousand: boxes, pieces, chunks, stored tensors.

`@frozen` is `@dataclass(frozen=True, slots=True)` with a constructor that costs a third: the usual one
looks up `object.__setattr__` for every field, this one calls each slot's own setter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots; a default is a value, never a factory."""
    made = dataclass(frozen=True, slots=True)(cls)
    names = [field.name for field in fields(made)]  # type: ignore[arg-type]
    defaults = [field.default for field in fields(made)]  # type: ignore[arg-type]
    setters: dict[str, Callable[..., None]] = {f"_{n}": made.__dict__[n].__set__ for n in names}
    lines = "\n ".join(f"_{name}(self, {name})" for name in names)
    found: dict[str, Any] = {}
    exec(f"def __init__(self, {', '.join(names)}):\n {lines}", setters, found)
    init = found["__init__"]
    init.__defaults__ = tuple(value for value in defaults if value is not MISSING) or None
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = made.__init__.__annotations__
    made.__init__ = init  # type: ignore[method-assign]
    return made

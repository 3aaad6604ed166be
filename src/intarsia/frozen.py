"""Frozen values that are made by the hundred thousand: boxes, pieces, chunks, stored tensors.

`@frozen` is `@dataclass(frozen=True, slots=True)` with a constructor that costs less than half.  The usual one
goes around the ban on assignments, which costs a call for every field; here a value is filled while its
class still allows that, and then given the class that does not, a subclass of the same name.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots; a default is a value, never a factory."""
    made: Any = dataclass(frozen=True, slots=True)(cls)
    del made.__setattr__, made.__delattr__
    names = [field.name for field in fields(made)]
    defaults = [field.default for field in fields(made) if field.default is not MISSING]

    def refuse(self: Any, name: str, *value: Any) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def reduce(self: Any) -> tuple[Any, ...]:
        return made, tuple([getattr(self, name) for name in names])

    closed = type(
        made.__name__,
        (made,),
        {
            "__slots__": (),
            "__doc__": made.__doc__,
            "__module__": made.__module__,
            "__qualname__": made.__qualname__,
            "__new__": lambda _, *args, **named: made(*args, **named),
            "__init__": lambda self, *args, **named: None,
            "__setattr__": refuse,
            "__delattr__": refuse,
            "__reduce__": reduce,
        },
    )
    lines = "\n ".join(f"self.{name} = {name}" for name in names)
    found: dict[str, Any] = {}
    code = f"def __init__(self, {', '.join(names)}):\n {lines}\n self.__class__ = closed"
    exec(code, {"closed": closed}, found)
    init = found["__init__"]
    init.__defaults__ = tuple(defaults) or None
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = made.__init__.__annotations__
    made.__init__ = init
    return made  # type: ignore[no-any-return]

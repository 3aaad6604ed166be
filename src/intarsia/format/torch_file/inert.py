"""What a pickle says, as values that do nothing: objects by their class's name, arrays, tensors."""

from __future__ import annotations

import reprlib
from functools import lru_cache
from typing import Any, NamedTuple, Self, cast

from intarsia.dtypes import DType
from intarsia.errors import FormatError
from intarsia.format.torch_file.tensor_bounds import MAX_AXES


def brief(value: object) -> str:
    """A value in few words, however deep it is nested."""
    small = isinstance(value, int) and value.bit_length() < 256
    if small or isinstance(value, (str, bytes, float, type(None))):
        return reprlib.repr(value)
    said = f"{value.name}(...)" if isinstance(value, Inert) else f"a {type(value).__name__}"
    return repr(value) if isinstance(value, type) else said


class _Named(type):
    def __repr__(cls) -> str:
        return f"{cls.__module__}.{cls.__qualname__}"


class Inert(metaclass=_Named):
    """An object of a class that is not loaded: its name, and what the pickle said about it."""

    __slots__ = ("args", "entries", "items", "state")
    args: tuple[Any, ...]
    state: Any
    items: list[Any]
    entries: dict[Any, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = object.__new__(cls)
        self.args, self.state, self.items, self.entries = args, kwargs or None, [], {}
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    add = append

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    @property
    def name(self) -> str:
        """The class as `module.name`."""
        return repr(type(self))

    @property
    def fields(self) -> dict[str, Any]:
        """The attributes that the state sets, whether kept in `__dict__` or in slots."""
        parts = self.state if isinstance(self.state, tuple) else (self.state,)
        return {k: v for p in parts if isinstance(p, dict) for k, v in p.items() if type(k) is str}

    def get(self, name: str, default: Any = None) -> Any:
        """One attribute of the state."""
        return self.fields.get(name, default)

    def __repr__(self) -> str:
        shown = [brief(a) for a in self.args[:6]]
        shown += [f"{k}={brief(v)}" for k, v in list(self.fields.items())[:6]]
        return f"{self.name}({', '.join(shown)}{', ...' if len(self.fields) > 6 else ''})"


@lru_cache(maxsize=1024)
def inert_class(module: str, name: str, base: type[Inert] = Inert) -> type[Inert]:
    """The stand-in for the class `module.name`."""
    said = {"__slots__": (), "__module__": module, "__qualname__": name}
    return cast(type[Inert], _Named(name, (base,), said))


class Array(Inert):
    """A NumPy array: its element type as NumPy spells it, its shape and its bytes."""

    __slots__ = ("data", "dtype", "shape")

    def __setstate__(self, state: Any) -> None:
        _, self.shape, dtype, _, self.data = state
        said = dtype.args[:1] if isinstance(dtype, Inert) else ()
        if [*map(type, said)] != [str] or not isinstance(self.data, bytes):
            raise FormatError("a NumPy array without an element type or bytes")
        self.shape, self.dtype = axes_of(self.shape), said[0]


class Storage(NamedTuple):
    """A run of elements kept beside the pickle; `dtype` is None where they are bare bytes."""

    key: str
    numel: int
    dtype: DType | None
    data: bytes | None = None


class InertTensor(NamedTuple):
    """A view of a storage; `stride` and `storage_offset` count elements."""

    storage: Storage
    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int


def axes_of(values: Any) -> tuple[int, ...]:
    """The sizes that a pickle gives a tensor; raise where they are none."""
    values = tuple(values) if type(values) is list and len(values) <= MAX_AXES else values
    if type(values) is not tuple or len(values) > MAX_AXES or not {*map(type, values)} <= {int}:
        raise FormatError(f"{brief(values)} is not a tuple of at most {MAX_AXES} integers")
    return values

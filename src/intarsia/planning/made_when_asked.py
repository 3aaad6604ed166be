"""Mappings and sequences whose values are made when they are asked for: one by one, or all of them in one go."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from threading import RLock
from typing import Any, TypeVar

Value = TypeVar("Value")
_MAKING = RLock()


class MadeWhenAsked(Mapping[str, Value]):
    """What `make` makes of what is held under each name; each value is made once, unless it is `made`."""

    __slots__ = ("_all", "_made", "_make", "held")

    def __init__(
        self,
        held: Mapping[str, Any],
        make: Callable[[Any], Value],
        made: dict[str, Value] | None = None,
    ) -> None:
        self.held = held
        self._make = make
        self._made: dict[str, Value] = made or {}
        self._all: dict[str, Value] | None = None

    def __getitem__(self, name: str) -> Value:
        found = self._made.get(name)
        # Of two threads that make one value, both take the one that is kept first.
        return self._made.setdefault(name, self._make(self.held[name])) if found is None else found

    def __contains__(self, name: object) -> bool:
        return name in self.held

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def keys(self) -> KeysView[str]:
        return self.held.keys()

    def values(self) -> ValuesView[Value]:
        return self._whole.values()

    def items(self) -> ItemsView[str, Value]:
        return self._whole.items()

    @property
    def _whole(self) -> dict[str, Value]:
        """Every value, in order."""
        if self._all is None:
            made, make = self._made, self._make
            self._all = {
                name: made.get(name) or made.setdefault(name, make(held))
                for name, held in self.held.items()
            }
        return self._all


class MadeTogether(Sequence[Value]):
    """As good as the tuple of its values, all of which are made when the first is asked for."""

    __slots__ = ("_made",)

    _made: tuple[Value, ...]

    @abstractmethod
    def _make(self) -> tuple[Value, ...]: ...

    @property
    def _values(self) -> tuple[Value, ...]:
        if not hasattr(self, "_made"):
            with _MAKING:
                # Another thread may have made them while this one waited.
                if not hasattr(self, "_made"):
                    self._made = self._make()
        return self._made

    def __getitem__(self, at: Any) -> Any:
        return self._values[at]

    def __iter__(self) -> Iterator[Value]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        return self._values == (other._values if isinstance(other, MadeTogether) else other)

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

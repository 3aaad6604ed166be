"""Several optimizers over one model, seen as one: their groups in a row, each state where its optimizer keeps it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from intarsia.errors import UsageError
from intarsia.state.names import SHARED_STATE


class SeveralOptimizers:
    """Optimizers that share no parameter."""

    def __init__(self, each: Sequence[Any]) -> None:
        self.each = tuple(each)
        first: dict[int, int] = {}
        for number, optimizer in enumerate(each):
            for param in chain.from_iterable(g["params"] for g in optimizer.param_groups):
                if first.setdefault(id(param), number) != number:
                    raise UsageError(
                        f"the optimizers {first[id(param)]} and {number} both update a parameter"
                        f" of {list(param.shape)}",
                        hint="save and load one of them with the model, the other with a path of"
                        " its own",
                    )

    @property
    def param_groups(self) -> list[Any]:
        """The groups of all."""
        return [group for optimizer in self.each for group in optimizer.param_groups]

    @cached_property
    def state(self) -> MutableMapping[Any, Any]:
        """The states of all."""
        return _States(self.each)

    def of_group(self, number: int) -> Any:
        """The optimizer that a group belongs to."""
        for optimizer in self.each:
            if number < len(optimizer.param_groups):
                return optimizer
            number -= len(optimizer.param_groups)
        raise IndexError(number)


class _States(MutableMapping[Any, Any]):
    """One mapping over the states of several optimizers; a parameter's goes to the one that steps it."""

    def __init__(self, each: Sequence[Any]) -> None:
        self._each = each
        self._of = {id(p): o for o in each for g in o.param_groups for p in g["params"]}

    def __getitem__(self, key: Any) -> Any:
        return self._with(key)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._of[id(key)].state[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._with(key)[key]

    def _with(self, key: Any) -> Any:
        """The states that have a key."""
        for optimizer in self._each:
            if key in optimizer.state:
                return optimizer.state
        raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(optimizer.state for optimizer in self._each)

    def __len__(self) -> int:
        return sum(len(optimizer.state) for optimizer in self._each)


def held_by(optimizer: Any, group: int) -> Any:
    """The optimizer that has a group: one of several, or the only one."""
    return optimizer.of_group(group) if isinstance(optimizer, SeveralOptimizers) else optimizer


def each_of(optimizer: Any) -> tuple[Any, ...]:
    """The optimizers that are seen as one."""
    return optimizer.each if isinstance(optimizer, SeveralOptimizers) else (optimizer,)


def check_shared(keys: Sequence[str], optimizer: Any) -> None:
    """Raise where nothing says which of several optimizers a state that is of no parameter belongs to."""
    if keys and isinstance(optimizer, SeveralOptimizers):
        key = keys[0].removeprefix(SHARED_STATE)
        raise UsageError(
            f"`{key}` is state of one of {len(optimizer.each)} optimizers, and belongs to no"
            " parameter, so nothing says which one",
            hint="keep it in the groups of its optimizer, or in `extra`",
        )

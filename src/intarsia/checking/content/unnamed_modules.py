"""Modules that numbers alone name, as those of `nn.Sequential`: what they are shows in what they hold.

Such a list holds modules of any kind, `net.0.bias` being a norm's and `net.1.bias` a projection's, and
the last of it often begins with zeros, unless it is a list of equals.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable

from intarsia.planning.manifest import Stored
from intarsia.state.names import parameter_of

_UNNAMED = re.compile(r"(?P<list>.*?)(?P<module>(?<![^.])\d+(?:\.\d+)*)\.(?P<leaf>[^.]+)")


class UnnamedModules:
    """What the parameters are called that each unnamed module holds, and their shapes."""

    def __init__(self, stored: Iterable[Stored]) -> None:
        self._lists: dict[str, dict[_Numbers, set[tuple[str, tuple[int, ...]]]]] = {}
        self._last: dict[str, _Numbers | None] = {}
        for x in stored:
            if found := _UNNAMED.fullmatch(x.name):
                modules = self._lists.setdefault(found["list"], {})
                modules.setdefault(_numbers(found["module"]), set()).add((found["leaf"], x.shape))

    def make_of(self, name: str) -> Hashable:
        """What a module must have in common with another to be its like; None of one that has a name."""
        found = _UNNAMED.fullmatch(parameter_of(name))
        if found is None:
            return None
        at = _numbers(found["module"])
        held = self._lists.get(found["list"], {}).get(at, set())
        return frozenset(held), at == self._last_of_unequals(found["list"])

    def _last_of_unequals(self, name: str) -> _Numbers | None:
        """The last module of a list, unless that is one of equals."""
        if name not in self._last:
            modules = self._lists.get(name, {})
            numbered = sorted(modules) == [(k,) for k in range(len(modules))]
            equals = numbered and len({*map(frozenset, modules.values())}) == 1
            self._last[name] = None if equals else max(modules, default=None)
        return self._last[name]


_Numbers = tuple[int, ...]


def _numbers(module: str) -> _Numbers:
    return tuple(int(k) for k in module.split("."))

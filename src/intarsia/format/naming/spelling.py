"""The names of stored tensors and of the parameters that states are of, without their prefix on disk."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from intarsia.family import Table
from intarsia.format.naming.find_sections import known_name_in
from intarsia.format.naming.named_tensors import StoredOrWhole, as_stored
from intarsia.format.naming.sections import Sections
from intarsia.format.naming.wrappers import bare, without_wrappers
from intarsia.format.optimizer_state.optimizer_names import state_in
from intarsia.frozen import frozen_open
from intarsia.state.names import StateName


@frozen_open
class Spelling:
    """How stored tensors are named, once sections and wrappers are taken off."""

    sections: Sections
    table: Table | None
    numbers: Mapping[str, str]

    def of_all(self, listed: list[StoredOrWhole]) -> list[StoredOrWhole]:
        """Each stored tensor that is read, under its name; state with the kind before the parameter."""
        known = self.table.known if self.table else self._held
        names, state = self.sections.names, self.sections.state
        if not state and [s.name for s in listed] == [*names] == [*names.values()]:
            return listed
        found: list[StoredOrWhole] = []
        for s in listed:
            key = s.name
            root = state.get(key)
            name = names.get(key) if root is None else self._state(key, root, known)
            if name is not None:
                found.append(s if name == key else replace(as_stored(s), name=name))
        return found

    def _state(self, key: str, root: str, known: Any) -> str | None:
        by_root = state_in(key, root)
        state = by_root or StateName.of(key)
        if root != self.sections.optimizer or state is None:
            return self.sections.entry(key)
        param = self.numbers.get(state.parameter) if by_root else None
        param = param or self._param(state.parameter, known)
        return str(StateName(state.kind, param)) if param is not None else None

    def _param(self, name: str, known: Any) -> str | None:
        """A parameter's own name; None where it is another section's."""
        plain = bare(name)
        if self.sections.foreign and plain.startswith(self.sections.foreign):
            return None
        if self.table is not None:
            found = known_name_in(plain, known) or self._beside(plain)
            return found[1] if found else plain
        for prefix in ("", *self.sections.prefixes):
            if plain.startswith(prefix) and (hit := without_wrappers(plain[len(prefix) :], known)):
                return hit
        return plain

    def _beside(self, plain: str) -> tuple[str, str] | None:
        """A weight that no table knows, such as an adapter's: without the prefix of the section's names."""
        found = known_name_in(plain, self._held)
        before = f".{found[0]}" if found else ""
        return found if any(f".{p}".endswith(before) for p in self.sections.prefixes) else None

    @cached_property
    def _held(self) -> frozenset[str]:
        return frozenset(self.sections.names.values())


def logical_members(
    name: str, table: Table | None, held: Container[str] = frozenset(), section: str = ""
) -> tuple[str, ...]:
    """The logical tensors that a parameter holds, whatever wrappers put before its name.

    Of what no table knows, such as adapters, they are those that a checkpoint has `held`; without a table,
    the `section` that is read is left out of its name.
    """
    plain = bare(name)
    if table is None:
        inner = plain.removeprefix(f"{section}.")
        return (inner if plain not in held and inner in held else plain,)
    if hit := known_name_in(plain, table.known):
        return table.known[hit[1]].layout.tensors
    return ((known_name_in(plain, held) or ("", plain))[1],)

"""Names of live tensors and the rows of a family's table that they stand for.

Wrappers put words into names (`module.`, `_orig_mod.`, …), and a model without its head lacks
the first; both are set right here.  What no table knows is taken by the name that it has in the
checkpoint, and what neither knows is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from intarsia.errors import UsageError
from intarsia.family import Param, Table, table_for
from intarsia.format.names import prefix_of
from intarsia.formats import read_manifest, with_rules_of_transformers
from intarsia.planning.manifest import Manifest

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Words that wrappers put between the words of a name."""


@dataclass(frozen=True)
class Rows:
    """For each live name, the row that says what its elements are; and names without one."""

    rows: Mapping[str, Param]
    missing: tuple[str, ...]


def bare(name: str) -> str:
    """A name without the words of wrappers.

    >>> bare("model.layers.0._checkpoint_wrapped_module.mlp.up_proj.weight")
    'model.layers.0.mlp.up_proj.weight'
    """
    return ".".join(word for word in name.split(".") if word not in WRAPPERS)


def named_tensors(into: Any) -> dict[str, Any]:
    """The tensors of a module or of a (nested) state dict, by dotted name."""
    if hasattr(into, "state_dict") and hasattr(into, "named_modules"):
        state = into.state_dict(keep_vars=True)
        return {name: x for name, x in state.items() if hasattr(x, "placements") or _is_tensor(x)}
    if isinstance(into, Mapping):
        return dict(_flat(into, ""))
    raise UsageError(
        f"{type(into).__name__} can neither be loaded into nor saved",
        hint="give a torch module, or a state dict of tensors",
    )


def _is_tensor(x: Any) -> bool:
    import torch

    return isinstance(x, torch.Tensor)


def _flat(state: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in state.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, name + ".")
        elif _is_tensor(value):
            yield name, value


def manifest_for(path: Any, into: Any, config: Any = None) -> Manifest:
    """A checkpoint's manifest; a model lends its configuration where the checkpoint has none."""
    manifest = read_manifest(path, config)
    if config is None and (manifest.config is None or manifest.config_made):
        lent = config_of(into)
        if lent is not None:
            manifest = read_manifest(path, lent)
    return manifest


def config_of(model: Any) -> dict[str, Any] | None:
    """The configuration of a Transformers model, as its `config.json` would hold it."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return None
    found = dict(config.to_dict())
    return found if found.get("model_type") else None


def find_rows(names: Mapping[str, Any], manifest: Manifest) -> tuple[Rows, Manifest]:
    """The rows of live names; the manifest comes back with the names that these were found by."""
    table = table_for(manifest.config)
    # Transformers' rules are for weights of the model's own shapes.
    plain_names = manifest.config is None or manifest.quantised or not _unknown(names, manifest)
    if table is None and not plain_names:
        manifest = with_rules_of_transformers(manifest)
        table = table_for(manifest.config)
    lookup = _Lookup(table, manifest)
    plain = {name: bare(name) for name in names}
    prefix = prefix_of(plain.values(), lookup)
    added = _added(plain.values(), lookup, table) if table and not prefix else ""
    rows, missing = {}, []
    for name, spelled in plain.items():
        row = _row(spelled, prefix, added, lookup)
        if row is None:
            missing.append(name)
        else:
            rows[name] = row
    return Rows(rows, tuple(missing)), manifest


def _row(spelled: str, prefix: str, added: str, lookup: Mapping[str, Param]) -> Param | None:
    for name in (spelled.removeprefix(prefix), spelled, added + spelled):
        if name in lookup:
            return lookup[name]
    return None


def _unknown(names: Mapping[str, Any], manifest: Manifest) -> bool:
    held = {bare(name) for name in names}
    return not held <= manifest.stored.keys()


class _Lookup(Mapping[str, Param]):
    """Rows by name: the module's dialect first, then the others, then what the checkpoint stores."""

    def __init__(self, table: Table | None, manifest: Manifest) -> None:
        self._module = table.dialects["hf-module"] if table else {}
        self._known = table.known if table else {}
        self._stored = manifest.stored
        self._keys = {s.key: s for s in manifest.stored.values() if s.key}

    def __getitem__(self, name: str) -> Param:
        for rows in (self._module, self._known):
            if name in rows:
                return rows[name]
        stored = self._stored[name] if name in self._stored else self._keys[name]
        return Param(name, stored.layout, stored.rule, stored.shift)

    def __contains__(self, name: object) -> bool:
        return any(name in rows for rows in (self._module, self._known, self._stored, self._keys))

    def __iter__(self) -> Iterator[str]:
        return iter({**self._known, **self._stored})

    def __len__(self) -> int:
        return len({**self._known, **self._stored})


def _added(names: Any, lookup: Mapping[str, Param], table: Table) -> str:
    """What a model without its head lacks at the beginning of its names."""
    found = sum(1 for name in names if name in lookup)
    for prefix in (table.module, table.hf, "model."):
        if sum(1 for name in names if prefix + name in lookup) > found:
            return prefix
    return ""

"""Names of live tensors and the rows of a family's table that they stand for.

Wrappers put words into names (`module.`, `_orig_mod.`, …), and a model without its head lacks
the first; both are set right here.  What no table knows is taken by the name that it has in the
checkpoint, and what neither knows is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from intarsia.errors import ForeignNamesError, UsageError
from intarsia.family import Param, Table, table_for
from intarsia.format.folder.adapters import how_to_load
from intarsia.format.naming.find_sections import known_name_in
from intarsia.format.naming.section import TOP, Section
from intarsia.format.naming.wrappers import MODULE, bare, without_wrappers
from intarsia.format.registry import read_manifest, with_rules_of_transformers
from intarsia.live.model.adapters import inner_word, is_layer
from intarsia.live.model.own_tensors import full_name
from intarsia.live.model.wrapper_classes import Wrappers, is_data_parallel
from intarsia.planning.inventory import items_left_out
from intarsia.planning.manifest import Manifest, Stored
from intarsia.store.address import named
from intarsia.store.reading.lookup import real
from intarsia.store.stamp import when


@dataclass(frozen=True)
class LiveRows:
    """For each live name, the row that says what its elements are; and names without one."""

    rows: Mapping[str, Param]
    missing: tuple[str, ...]


def own_name(
    model: Any, *, with_peft: bool = False, wrappers: Wrappers | None = None
) -> Callable[[str], str]:
    """The function that takes the words of wrappers out of a live model's names: DDP's only where DDP is.

    `with_peft` leaves PEFT's, as its own state dicts have them.  `wrappers` are the
    model's, where they are known.
    """
    found = wrappers or Wrappers.of(model)
    if not found.data_parallel and not found.peft:
        return bare
    # Some wrappers take their own words out of a state dict's names, and none out of these.
    wrapped, layers = set[tuple[str, str]](), set[str]()
    for path, each in model.named_modules():
        if is_data_parallel(type(each)):
            wrapped.add((bare(path), MODULE))
        elif not with_peft and (word := inner_word(each)) is not None:
            wrapped.add((bare(path), word))
            layers |= {bare(path)} if is_layer(each) else set()

    def clean(name: str) -> str:
        kept, left, path = list[str](), list[str](), ""
        for word in bare(name).split("."):
            if (path, word) in wrapped:
                left += [word] if word != MODULE else []
            else:
                # One adapter of PEFT's around another: their tensors differ by these words alone.
                kept += [*left, word] if path in layers else [word]
                left = []
            path = full_name(path, word)
        return ".".join(kept)

    return clean


def manifest_for(path: Any, into: Any, config: Any = None, section: Any = None) -> Manifest:
    """A checkpoint's manifest; a model lends its configuration where the checkpoint has none."""
    manifest = read_manifest(path, config, section=section)
    into = model_in(into)
    if config is None and (manifest.config is None or manifest.config_made):
        lent = config_of_model(into)
        if lent is not None and not how_to_load(manifest):
            manifest = read_manifest(path, lent, section=section)
    return manifest


def named_as_is(
    path: Any, into: Any, config: Any, section: Any, *, cut: bool = False
) -> Manifest | None:
    """All sections of a checkpoint under the names on disk, for a dict that asks for several by name.

    Where plain tensors are `cut`, only a family's table says how.
    """
    if section is not None or not isinstance(into, Mapping):
        return None
    parts = [x for x in into.values() if isinstance(x, Mapping) or hasattr(x, "named_modules")]
    if len(parts) < 2 and not any(hasattr(x, "named_modules") for x in parts):
        return None
    try:
        found = read_manifest(path, config, section=TOP)
    except ForeignNamesError:  # with the keys in front, no name is the model's
        return None
    return None if cut and found.config == {} else found


def checkpoint_facts(manifest: Manifest) -> dict[str, str]:
    """What all ranks that load a checkpoint have to find alike: its path, and each file's length and time."""
    found = {"checkpoint": str(real(named(manifest.path))), "section": str(manifest.section)}
    for file, stamp in sorted(manifest.stamps.items()):
        size, mtime, *_ = stamp
        found[f"file {file}"] = f"{size:,} bytes of {when(mtime)}"
    return found


def model_in(given: Any) -> Any:
    """The one module of a dict; anything else as it is."""
    if not isinstance(given, Mapping):
        return given
    modules = [x for x in given.values() if hasattr(x, "named_modules")]
    return modules[0] if len(modules) == 1 else given


def modules_in(given: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A module, or those of a dict, each with the prefix of its names."""
    if hasattr(given, "named_modules"):
        yield prefix, given
    elif isinstance(given, Mapping):
        for key, value in given.items():
            yield from modules_in(value, f"{prefix}{key}.")


def config_of_model(model: Any) -> dict[str, Any] | None:
    """The configuration of a Transformers model, as its `config.json` would hold it."""
    while is_data_parallel(type(model)):
        model = model.module
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return None
    found = dict(config.to_dict())
    if not found.get("architectures") and is_of_transformers(type(model)):
        # As `save_pretrained` has it: FSDP2 makes a class of its own.
        found["architectures"] = [type(model).__name__.removeprefix("FSDP")]
    return found if found.get("model_type") else None


def configs_in(given: Any) -> dict[str, dict[str, Any] | None]:
    """The configuration of a module, or of each module of a dict by its key, where it has one."""
    held = modules_in(given)
    return {prefix.removesuffix("."): config_of_model(module) for prefix, module in held}


def config_of_all(configs: Mapping[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    """The configuration that all modules have (a model and its average)."""
    first, *others = configs.values() or [None]
    return first if all(other == first for other in others) else None


def is_of_transformers(kind: type) -> bool:
    """Whether a class is a model of Transformers; that is not imported for it."""
    return any(base.__name__ == "PreTrainedModel" for base in kind.__mro__)


def find_rows(names: Mapping[str, Any], manifest: Manifest) -> tuple[LiveRows, Manifest]:
    """The rows of live names; the manifest comes back with the names that these were found by."""
    table, spelled = table_for(manifest.config), {name: bare(name) for name in names}
    # Transformers' rules are for weights of the model's own shapes.
    plain_names = manifest.config is None or manifest.quantised
    if table is None and not plain_names and not {*spelled.values()} <= manifest.stored.keys():
        manifest = with_rules_of_transformers(manifest)
        table = table_for(manifest.config)
    lookup = _Lookup(table, manifest)
    found = _spelled(spelled, lookup, table, manifest)
    rows = {name: lookup[known] for name, known in found.items()}
    return LiveRows(rows, tuple(name for name in names if name not in rows)), manifest


def _spelled(
    names: Mapping[str, str], lookup: _Lookup, table: Table | None, manifest: Manifest
) -> dict[str, str]:
    """The name that each live name has in the lookup; raise where two would be one."""
    hits = {n: hit for n, plain in names.items() if (hit := known_name_in(plain, lookup))}
    prefixes = {prefix for prefix, _ in hits.values()}
    allowed = {p for p in prefixes if len(prefixes) == 1 or Section(p.strip(".")).own}
    for item in items_left_out(manifest.inventory):
        if item.kind == "section" and f"{item.name}." in prefixes:
            raise UsageError(
                f"the tensors asked for begin with {item.name!r}, a section of {manifest.path} that is"
                " not the one that is read",
                hint=f"load that section by itself: section={item.name!r}, and a state dict without the key",
            )
    found = {n: name for n, (prefix, name) in hits.items() if prefix in allowed}
    if table is not None and prefixes <= {""}:
        found |= dict(
            _without_head({n: p for n, p in names.items() if n not in found}, lookup, table)
        )
    found |= dict(_wrapped({p: n for n, p in names.items() if n not in found}, manifest))
    first: dict[Any, str] = {}
    before = {name: hits.get(name, ("",))[0] for name in found}
    several = len({*before.values()}) > 1
    for name, spelled in found.items() if several or len({*found.values()}) < len(found) else ():
        asked = first.setdefault(spelled, name)
        other = first.setdefault(lookup[spelled].layout, name)
        if names[asked] != names[name] or before[other] != before[name]:
            raise UsageError(
                f"`{asked if asked != name else other}` and `{name}` both ask for `{spelled}` of"
                f" {manifest.path}",
                hint="load each section of the state dict by itself",
            )
    return found


def _without_head(
    names: Mapping[str, str], lookup: _Lookup, table: Table
) -> Iterator[tuple[str, str]]:
    """The names of a model without its head, which lack the first word of the whole one's."""
    for name, plain in names.items():
        ways = [w + plain for w in (table.module, table.hf, "model.") if w + plain in lookup]
        if ways and all(lookup[way].layout == lookup[ways[0]].layout for way in ways):
            yield name, ways[0]


def _wrapped(names: Mapping[str, str], manifest: Manifest) -> Iterator[tuple[str, str]]:
    """The live names that a checkpoint without a table has with a wrapper's word in them, as DDP's state dict does."""
    keys: dict[str, list[str]] = {}
    for key in manifest.stored if names else ():
        if MODULE in key and (plain := without_wrappers(key, names)):
            keys.setdefault(plain, []).append(key)
    yield from ((names[plain], each[0]) for plain, each in keys.items() if len(each) == 1)


class _Lookup(Container[str]):
    """Rows by name: the module's dialect first, then the others, then what the checkpoint stores."""

    def __init__(self, table: Table | None, manifest: Manifest) -> None:
        self._module = table.dialects["hf-module"] if table else {}
        self._known = table.known if table else {}
        self._stored = manifest.stored

    @cached_property
    def _keys(self) -> dict[str, Stored]:
        return {s.key: s for s in self._stored.values() if s.key}

    def __getitem__(self, name: str) -> Param:
        for rows in (self._module, self._known):
            if name in rows:
                return rows[name]
        stored = self._stored[name] if name in self._stored else self._keys[name]
        return Param(stored.name, stored.layout, stored.rule, stored.value)

    def __contains__(self, name: object) -> bool:
        named = any(name in rows for rows in (self._module, self._known, self._stored))
        return named or name in self._keys

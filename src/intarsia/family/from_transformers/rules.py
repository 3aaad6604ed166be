"""Transformers' own conversion rules, compiled into layouts, for families that have no table.

Transformers v5 loads a file into a module by rules: renamings on patterns, and converters that
stack, join, cut and permute tensors.  The rules of the installed version are taken as data: the
model is built without storage, its rules are asked for, and each operation becomes the layout
operation of the same name.  No weight is read and none of Transformers' tensor code runs.  An
operation that is not known here is refused by name, never guessed.

Transformers is imported when a function is called, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import signature
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family.config.fields import Config
from intarsia.family.from_transformers.operations import OPERATIONS, OperationInput, Parts, one
from intarsia.family.from_transformers.skeleton import Skeleton
from intarsia.family.table import DISK, HUB, Table
from intarsia.layout import Layout
from intarsia.mesh import Rule, Shape


def table_by_rules(config: Config, stored: Mapping[str, Shape] | None = None) -> Table:
    """A table of `hf` and `hf-module` rows by Transformers' rules.

    `stored` gives names and shapes on disk; without it they are what `save_pretrained` writes.
    """
    model = Skeleton.of(config)
    shapes = dict(stored) if stored is not None else shapes_on_disk(model)
    out = Table(str(config["model_type"]), config, whole=True)
    for name, shape in shapes.items():
        out.store(DISK, out.tensor(name, *shape), None, name, rule=_rule(shape))
    for name, layout in rows_of_skeleton(model, shapes).items():
        rule, names = _rule(layout.shape), layout.tensors
        if name in model.tied and name not in shapes and len(names) == 1:
            out.tie(out.tensor(name, *layout.shape), to=names[0])
            out.store(HUB, name, None, name, rule=rule)
            continue
        out.store(("hf-module",), name, lambda *_, x=layout: x, *names, rule=rule)
    return out


def _rule(shape: Shape) -> Rule:
    return Rule(tp=0) if len(shape) > 1 else Rule()


def module_rows(config: Config, stored: Mapping[str, Shape]) -> dict[str, Layout]:
    """What `state_dict()` of the Transformers model holds, in terms of the tensors on disk.

    A stored tensor that no row names is one that Transformers ignores.
    """
    return rows_of_skeleton(Skeleton.of(config), stored)


def table_of_hub_names(config: Config, module: Mapping[str, Shape]) -> dict[str, str]:
    """The hub's name of each tensor of the module that is one tensor there, as it is."""
    model = Skeleton.of(config)
    shapes = shapes_on_disk(model)
    return {
        name: layout.tensors[0]
        for name, layout in rows_of_skeleton(model, shapes).items()
        if is_one_tensor(layout, shapes) and module.get(name) == layout.shape
    }


def is_one_tensor(layout: Layout, shapes: Mapping[str, Shape]) -> bool:
    """Whether a layout is all of one tensor of those shapes, in its own order."""
    names = layout.tensors
    return len(names) == 1 and layout == Layout.of(names[0], shapes.get(names[0], ()))


def rows_of_skeleton(model: Skeleton, stored: Mapping[str, Shape]) -> dict[str, Layout]:
    """As `module_rows`, of a model that is built."""
    renamings, converters = sorted_rules(model.rules)
    rename = model.loading.rename_source_key
    caught = []
    for key in sorted(stored, key=model.loading.dot_natural_key):
        name, pattern = rename(key, renamings, converters, model.base, model.shapes)
        if name not in model.shapes and key in model.shapes:
            # A pattern caught a name that was right.
            name, pattern = rename(key, [], [], model.base, model.shapes)
        if name in model.shapes:
            caught.append((name, pattern, Layout.of(key, stored[key])))
    out = _convert(model, converters, caught)
    for name, twin in model.tied.items():
        if name not in out and twin in out:
            out[name] = out[twin]
    for name, layout in out.items():
        if name in model.shapes and layout.shape != model.shapes[name]:
            raise FamilyError(
                f"Transformers' rules make `{name}` {list(layout.shape)} of the file's tensors, the"
                f" model has {list(model.shapes[name])}",
                hint="the configuration is another model's, or the file is damaged",
                tensors=(name,),
            )
    return {name: out[name] for name in model.shapes if name in out}


def shapes_on_disk(model: Skeleton) -> dict[str, Shape]:
    """The names and shapes that `save_pretrained` gives the tensors of a model."""
    # A prefix that loading removes cannot be known to have been there: saving leaves it off.
    kept = [r for r in model.saving if type(r).__name__ != "PrefixChange"]
    renamings, converters = sorted_rules([r.reverse_transform() for r in reversed(kept)])
    before, after = _renaming_to_save(model.loading, renamings, converters)
    caught = [
        (*before(key), Layout.of(key, model.shapes[key]))
        for key in sorted(model.shapes, key=model.loading.dot_natural_key)
        if key not in model.tied
    ]
    made = _convert(model, converters, caught)
    return {after(name): layout.shape for name, layout in made.items()}


def _renaming_to_save(
    loading: Any, renamings: list[Any], converters: list[Any]
) -> tuple[Callable[[str], tuple[str, str | None]], Callable[[str], str]]:
    """How the installed Transformers renames a tensor that it saves, before its converter and after.

    From 5.22 on rules rename what the converters made; 5.17 renames first, and needs to know that.
    """
    if hasattr(loading, "apply_converters"):
        return (
            lambda name: loading.apply_converters(name, converters),
            lambda name: str(loading.apply_renamings(name, renamings)),
        )
    if "reverse" in signature(loading.rename_source_key).parameters:
        rules = {"weight_renamings": renamings, "weight_converters": converters}
        return partial(loading.rename_source_key, **rules, reverse=True), str
    raise FamilyError(
        "the installed Transformers loads by rules but does not provide the rules for saving",
        hint="install transformers 5.17 or later, or start from a checkpoint in the hub's dialect",
    )


def sorted_rules(rules: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Rules that rename, and rules that convert."""
    rules = list(rules)
    return (
        [r for r in rules if not hasattr(r, "operations")],
        [r for r in rules if hasattr(r, "operations")],
    )


def _convert(
    model: Skeleton, converters: list[Any], caught: Iterable[tuple[str, str | None, Layout]]
) -> dict[str, Layout]:
    """What converters make of tensors: `caught` has each under its new name, and the pattern it met."""
    jobs: dict[str, tuple[Any | None, Parts]] = {}
    for name, pattern, layout in caught:
        rule = next((c for c in converters if pattern in c.source_patterns), None)
        _, parts = jobs.setdefault(name, (rule, {}))
        parts.setdefault(pattern or "", []).append(layout)
    out: dict[str, Layout] = {}
    for name, (rule, parts) in jobs.items():
        if rule is None or "" in parts:  # what is stored under the very name, and nothing beside it
            out[name] = one(name, [x for held in parts.values() for x in held])
        else:
            out |= _run(model, rule, name, parts)
    return out


def _run(model: Skeleton, rule: Any, name: str, parts: Parts) -> dict[str, Layout]:
    """One converter's operations in order, then full names for what they made."""
    sources, targets = list(rule.source_patterns), list(rule.target_patterns)
    for op in rule.operations:
        known = OPERATIONS.get(type(op).__name__)
        if known is None:
            raise FamilyError(
                f"Transformers converts `{name}` by {type(op).__name__}, an operation that"
                " Intarsia does not know",
                hint="convert it with Transformers itself, or write a table for the family",
                tensors=(name,),
            )
        parts = known(op, OperationInput(parts, sources, targets, name, model))
    full = name.replace("*.", "0.")
    for pattern in parts:
        if pattern in full:
            before, _, after = full.partition(pattern)
            return {before + k + after: one(name, v) for k, v in parts.items()}
    return {k: one(name, v) for k, v in parts.items()}

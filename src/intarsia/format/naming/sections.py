"""The sections of a state dict: which one is the model, which optimizer is its, and what else is there.

    model.model.norm.weight       `model`, a framework's own name: the model
    ema.model.norm.weight         `ema`, another model of the same names: left out, and named
    app.optim.state. …            an optimizer, by its form

A section is found from content: names that the family's table explains; without a table, the place
where torch's nesting of the state dict ends; and a section that holds the same names as another is
another model.  Two that may be the model are refused, and the user chooses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from intarsia.errors import FamilyError, IntarsiaError
from intarsia.format.naming.choose_model import chosen_model, explained_model, model_of
from intarsia.format.naming.find_sections import are_themselves, by_nesting, by_table, by_word
from intarsia.format.naming.section import OWN, TOP, Paths, Section, TensorHeader
from intarsia.format.naming.wrappers import bare
from intarsia.format.optimizer_state.optimizer_names import may_have_roots, owner, roots_of
from intarsia.frozen import frozen_open
from intarsia.planning.inventory import Fate, InventoryItem, Role
from intarsia.state.names import ROOT

GIVEN = "extra."
_GIVEN = (GIVEN, "extra_of_rank.")
"""What a caller of `save` adds under names of its own, which say nothing of sections."""


@frozen_open
class Sections:
    """Every tensor of a state dict, divided.

    `names` are the model's tensors and those beside it that are carried, each with its name there;
    `others` are other models, by section the names of their tensors inside it; `optimizer` is the root of
    the model's optimizer, and `unclear` why that is not known.
    """

    names: Mapping[str, str]
    state: Mapping[str, str]
    roots: tuple[str, ...]
    optimizer: str | None
    label: str
    prefixes: tuple[str, ...]
    foreign: tuple[str, ...]
    others: Mapping[str, Mapping[str, str]]
    inventory: tuple[InventoryItem, ...] = ()
    unclear: IntarsiaError | None = None

    def entry(self, name: str) -> str | None:
        """The name of an object beside the tensors; None where it goes with a section that is left out."""
        root = None if name.startswith(_GIVEN) else self._owner(name)
        if root is not None:
            if self.unclear is not None:
                return ROOT + name
            return ROOT + name[len(root) :] if root == self.optimizer else None
        plain = bare(name)
        prefix = next((p for p in self.prefixes if plain.startswith(p)), "")
        if plain.startswith(self.foreign):
            return None
        return plain.removeprefix(prefix) if prefix else name

    def is_models(self, name: str, path: Sequence[str | int]) -> bool:
        """Whether a tensor is below the model's key; a model that was saved without one has names that torch did not nest."""
        return bare(name).startswith(self.prefixes) if self.label else len(path) == 1

    @cached_property
    def _owner(self) -> Callable[[str], str | None]:
        return owner(self.roots)


def divide(
    tensors: Mapping[str, TensorHeader],
    known: Collection[str] | None,
    where: str,
    *,
    objects: Iterable[str] = (),
    paths: Paths | None = None,
    configured: bool = False,
    chosen: Sequence[str] = (),
) -> Sections:
    """Divide the tensors of a state dict; `known` are the names of the family's table, if it has one."""
    objects = [name for name in objects if not name.startswith(_GIVEN)]
    roots: tuple[str, ...] = ()
    if may_have_roots([*tensors, *objects]):
        roots = roots_of({name: t.shape for name, t in tensors.items()}, objects)
    of = owner(roots)
    state = {name: root for name in tensors if (root := of(name)) is not None} if roots else {}
    rest = {name: t for name, t in tensors.items() if name not in state} if state else tensors
    wanted = [name for name in chosen if f"{name}." not in roots]
    model, others, names = _model_among(rest, known, where, paths, configured, wanted, roots)
    prefixes = tuple(sorted(model.prefixes - {""}, key=len, reverse=True))
    foreign = tuple(head for s in others for head in s.heads)
    left: dict[str, list[str]] = {s.label: list(s.names) for s in others}
    strange: list[str] = []
    if len(names) < len(rest):
        taken = names.keys() | {name for s in others for name in s.names}
        strange = [name for name in rest if name not in taken]
    for name in strange:
        plain = bare(name)
        if foreign and plain.startswith(foreign):
            label = next(s.label for s in others if plain.startswith(s.heads))
            left[label].append(name)
        elif prefix := next((p for p in prefixes if plain.startswith(p)), ""):
            names[name] = plain.removeprefix(prefix)
        elif wanted and model.label:
            left.setdefault(plain.partition(".")[0], []).append(name)
        else:
            names[name] = plain
    optimizer, unclear = _optimizer_of(roots, model, others, chosen, where)
    if [*names] != [*rest]:
        names = {name: names[name] for name in rest if name in names}
    apart = {s.label: s.names for s in others}
    divided = Sections(
        names, state, roots, optimizer, model.label, prefixes, foreign, apart, unclear=unclear
    )
    return replace(
        divided,
        inventory=tuple(_items(divided, tensors, others, left, objects, wanted, paths or {})),
    )


def _model_among(
    rest: Mapping[str, TensorHeader],
    known: Collection[str] | None,
    where: str,
    paths: Paths | None,
    configured: bool,
    wanted: Sequence[str],
    roots: Sequence[str],
) -> tuple[Section, list[Section], dict[str, str]]:
    """The section that is the model, other models, and the names of the model's tensors."""
    if known is not None and not wanted and are_themselves(rest, known):
        found = {"": Section("", dict(zip(rest, rest, strict=True)), prefixes={""})}
    elif known is not None:
        found = by_table(rest, known)
    else:
        found = by_nesting(rest, paths) if paths else by_word(rest, configured, bool(wanted))
    sections = [*found.values()]
    if wanted:
        model, others = chosen_model(wanted, found, rest, roots, where)
    else:
        choose = explained_model if known is not None else model_of
        model, others = choose(sections, where, paths or {})
    names = dict(model.names)
    if known is not None and not wanted:
        for part in sections:
            if part.own and part is not model and part not in others:
                names |= part.names
    return model, others, names


def _optimizer_of(
    roots: Sequence[str],
    model: Section,
    others: Sequence[Section],
    chosen: Sequence[str],
    where: str,
) -> tuple[str | None, IntarsiaError | None]:
    """The root of the model's optimizer, or why that is not known."""
    named = [root for root in roots if root.removesuffix(".") in chosen]
    if len(named) == 1:
        return named[0], None
    left = [root for root in roots if not any(belongs(root, other.label) for other in others)]
    mine = [root for root in left if belongs(root, model.label)] or left
    tied = any(belongs(root, model.label) for root in mine)
    if len(mine) == 1 and (tied or model.own or not others):
        return mine[0], None
    if not mine or (not tied and not model.own and any(other.own for other in others)):
        return None, None  # the optimizers are those of the section with a framework's own name
    listed = ", ".join(root.removesuffix(".") or TOP for root in mine)
    which = "is" if len(mine) == 1 else "are"
    return None, FamilyError(
        f"nothing says which optimizer belongs to section {model.label or TOP!r}: there {which}"
        f" {listed}",
        at=where,
        hint=f"name it too (--section {model.label or TOP},{mine[0].removesuffix('.')}), or"
        " leave optimizer state out (--optimizer drop)",
    )


def belongs(root: str, label: str) -> bool:
    """Whether an optimizer lies inside or beside a section, or has its word."""
    if not label:
        return False
    *parent, word = label.split(".")
    if root.startswith(f"{label}."):
        return True
    home = root.removesuffix(".").split(".")
    if parent and home[:-1] == parent and not all(p in OWN for p in parent):
        return True
    return word not in OWN and re.search(rf"(?:^|_){re.escape(word)}(?:_|$)", home[-1]) is not None


def _items(
    divided: Sections,
    tensors: Mapping[str, TensorHeader],
    others: Sequence[Section],
    left: Mapping[str, Sequence[str]],
    objects: Sequence[str],
    asked: Sequence[str],
    paths: Paths,
) -> Iterable[InventoryItem]:
    """One item a section; none where all there is is a model without a name."""
    model, state = divided.label, divided.state
    counters = _counters(divided, tensors, paths)
    if not (model or left or state or objects or counters):
        return

    def size(keys: Iterable[str]) -> int:
        return sum(tensors[key].nbytes for key in keys)

    nbytes = size(divided.names) - sum(map(size, counters.values()))
    yield InventoryItem("section", model or TOP, Role.MODEL, Fate.READ, nbytes=nbytes)
    models = {s.label for s in others}
    for label, keys in left.items():
        if keys:
            role = Role.OTHER_MODEL if label in models else Role.UNKNOWN
            why = f"another model; {model or TOP} is read (--section {label} reads this one)"
            why = f"not the chosen section, {asked[0]}" if asked else why
            yield InventoryItem("section", label or TOP, role, Fate.LEFT_OUT, why, size(keys))
    for root in divided.roots:
        keys = [key for key, of in state.items() if of == root]
        kept = root == divided.optimizer or divided.unclear is not None
        fate, why, name = Fate.READ, "", root.removesuffix(".") or TOP
        if not kept:
            fate = Fate.LEFT_OUT
            why = f"nothing says that it is this section's (--section {model or TOP},{name} reads it so)"
        yield InventoryItem("section", name, Role.OPTIMIZER, fate, why, size(keys))
    # Of what torch did not nest, names with dots are those of a module.
    apart = (n for n in objects if "." not in n or len(paths.get(n, ())) != 1)
    rest = dict.fromkeys(n.partition(".")[0] for n in apart if divided._owner(n) is None)
    for word in rest | counters:
        if word not in models and word != model.partition(".")[0]:
            yield InventoryItem(
                "section", word, Role.TRAINING, Fate.READ, nbytes=size(counters.get(word, ()))
            )


def _counters(
    divided: Sections, tensors: Mapping[str, TensorHeader], paths: Paths
) -> dict[str, list[str]]:
    """Keys of the saved dict beside the model's below which all tensors are of whole numbers, as counters and generators are."""
    found: dict[str, list[str]] = {}
    nested = {name: path for name in divided.names if (path := paths.get(name))} if paths else {}
    if not divided.label and not any(len(path) == 1 for path in nested.values()):
        return found
    for name, path in nested.items():
        if not divided.is_models(name, path):
            found.setdefault(str(path[0]), []).append(name)
    return {
        k: held for k, held in found.items() if not any(tensors[n].dtype.floating for n in held)
    }

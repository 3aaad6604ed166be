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
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from intarsia.errors import FamilyError, IntarsiaError, SectionError, UsageError
from intarsia.format.naming.wrappers import MODULE, bare, unwrapped
from intarsia.format.optimizer_state.optimizer_names import owner, roots_of
from intarsia.mesh import Shape
from intarsia.planning.inventory import Fate, Item, Role
from intarsia.quantity import human
from intarsia.state.names import ROOT

TOP = "."
"""What the section without a name is called."""

_APP = "app"
_OWN = frozenset({_APP, "model", "module", "state_dict", "model_state_dict", "model_state"})
_OTHERS = re.compile(
    r"(?:^|[_.])(ema|swa|shadow|averaged|teacher|student|ref|reference|policy|actor|critic|target)(?:[_.]|$)"
)
"""Words by which people call one of several models."""

_GIVEN = ("extra.", "extra_of_rank.")
"""What a caller of `save` adds under names of its own, which say nothing of sections."""

Paths = Mapping[str, tuple[str | int, ...]]


class Tensor(NamedTuple):
    """What is known of a stored tensor from its header."""

    shape: Shape
    nbytes: int


@dataclass
class Section:
    """Tensors under one key: the names that they have inside it, and what stands before those on disk."""

    label: str
    names: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    prefixes: set[str] = field(default_factory=set)
    nbytes: int = 0

    def add(self, key: str, name: str, prefix: str, tensor: Tensor) -> None:
        self.names[key] = name
        self.shapes[name] = tensor.shape
        self.prefixes.add(prefix)
        self.nbytes += tensor.nbytes

    @property
    def own(self) -> bool:
        """Whether a framework calls its model so."""
        return all(word in _OWN for word in self.label.split(".") if word)

    @property
    def heads(self) -> tuple[str, ...]:
        """What the names of all that goes with it begin with, whatever wrapper its tensors are in."""
        return tuple({*self.prefixes, f"{self.label}."} - {"", "."})

    @cached_property
    def unwrapped(self) -> dict[str, Shape]:
        """Its shapes by names in which `module`, a wrapper's word here, is left out."""
        return {
            ".".join([w for w in name.split(".") if w != MODULE]) if MODULE in name else name: shape
            for name, shape in self.shapes.items()
        }

    @property
    def called_other(self) -> bool:
        """Whether it has a word for one of several models."""
        return _OTHERS.search(self.label) is not None

    def within(self, other: Section) -> bool:
        """Whether every name of it is the other's too, with the same shape."""
        return self.unwrapped.items() <= other.unwrapped.items()

    def overlaps(self, other: Section) -> bool:
        """Whether both hold a tensor of one name and shape."""
        return not self.unwrapped.items().isdisjoint(other.unwrapped.items())

    def lies_in(self, other: Section) -> bool:
        """Whether its key lies below the other's."""
        return bool(other.label) and self.label.startswith(f"{other.label}.")

    def rivals(self, other: Section) -> bool:
        """Whether both hold a tensor of one name, and neither lies inside the other."""
        apart = self is not other and not (self.lies_in(other) or other.lies_in(self))
        return apart and not self.unwrapped.keys().isdisjoint(other.unwrapped)

    def __str__(self) -> str:
        return f"{self.label or TOP} ({len(self.names)} tensors, {human(self.nbytes)})"


@dataclass(frozen=True)
class Sections:
    """Every tensor of a state dict, divided.

    `names` are the model's tensors and those beside it that are carried, each with its name there;
    `optimizer` is the root of the model's optimizer, and `unclear` why that is not known.
    """

    names: Mapping[str, str]
    state: Mapping[str, str]
    roots: tuple[str, ...]
    optimizer: str | None
    label: str
    prefixes: tuple[str, ...]
    foreign: tuple[str, ...]
    inventory: tuple[Item, ...] = ()
    unclear: IntarsiaError | None = None

    def entry(self, name: str) -> str | None:
        """The name of an object beside the tensors; None where it goes with a section that is left out."""
        root = None if name.startswith(_GIVEN) else self._owner(name)
        if root is not None:
            if self.unclear is not None and len(self.roots) > 1:
                return ROOT + name
            return ROOT + name[len(root) :] if root == self.optimizer else None
        return None if bare(name).startswith(self.foreign) else name

    @cached_property
    def _owner(self) -> Callable[[str], str | None]:
        return owner(self.roots)


def divide(
    tensors: Mapping[str, Tensor],
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
    roots = roots_of({name: t.shape for name, t in tensors.items()}, objects)
    of = owner(roots)
    state = {name: root for name in tensors if (root := of(name)) is not None}
    rest = {name: t for name, t in tensors.items() if name not in state}
    wanted = [name for name in chosen if f"{name}." not in roots]
    if known is not None:
        found = _by_table(rest, known)
    else:
        found = _by_nesting(rest, paths) if paths else _by_word(rest, configured, bool(wanted))
    if wanted:
        model, others = _choose(wanted, found, rest, where)
    elif known is not None:
        model, others = _explained_model(list(found.values()), where, paths or {})
    else:
        model, others = _model_of(list(found.values()), where, paths or {})
    names = dict(model.names)
    sections = [s for s in found.values() if s is not model and s not in others]
    if known is not None and not wanted:
        for part in [s for s in sections if s.own]:
            names |= part.names
            sections.remove(part)
    prefixes = tuple(sorted(model.prefixes - {""}, key=len, reverse=True))
    foreign = tuple(head for s in others for head in s.heads)
    left: dict[str, list[str]] = {s.label: list(s.names) for s in others}
    for name in rest:
        if name in names or any(name in s.names for s in others):
            continue
        plain = bare(name)
        if plain.startswith(foreign) and foreign:
            label = next(s.label for s in others if plain.startswith(s.heads))
            left[label].append(name)
        elif prefix := next((p for p in prefixes if plain.startswith(p)), ""):
            names[name] = plain.removeprefix(prefix)
        elif wanted and model.label:
            left.setdefault(plain.partition(".")[0], []).append(name)
        else:
            names[name] = plain
    optimizer, unclear = _optimizer_of(roots, model, others, chosen, where)
    items = _items(
        tensors, model, others, left, names, state, roots, optimizer, objects, unclear, wanted
    )
    order = {name: names[name] for name in rest if name in names}
    return Sections(
        order, state, roots, optimizer, model.label, prefixes, foreign, tuple(items), unclear
    )


def _by_table(tensors: Mapping[str, Tensor], known: Collection[str]) -> dict[str, Section]:
    """Sections by what stands before names that a table explains."""
    found: dict[str, Section] = {}
    labels: dict[str, str] = {}
    ends = {MODULE, *(name.rpartition(".")[2] for name in known)}
    for key, tensor in tensors.items():
        plain = bare(key)
        if plain.rpartition(".")[2] in ends and (hit := explained(plain, known)):
            prefix, name = hit
            label = labels.get(prefix)
            if label is None:
                label = labels[prefix] = _label(prefix.split("."))
                found.setdefault(label, Section(label))
            found[label].add(key, name, prefix, tensor)
    return found


def explained(name: str, known: Container[str]) -> tuple[str, str] | None:
    """What stands before a known name, and that name; a plain reading goes before one without `module`."""
    if name in known:
        return "", name
    starts = [0, *(k + 1 for k, letter in enumerate(name) if letter == ".")]
    for start in starts:
        if name[start:] in known:
            return name[:start], name[start:]
    if f".{MODULE}." in name:
        for start in starts:
            if hit := unwrapped(name[start:], known):
                return name[:start], hit
    return None


def _label(words: Sequence[str | int]) -> str:
    """A section's name: the words before its tensors, without those of wrappers."""
    label = ".".join(str(word) for word in words if word not in (MODULE, ""))
    return "" if label == "base_model.model" else label


def _by_nesting(tensors: Mapping[str, Tensor], paths: Paths) -> dict[str, Section]:
    """Sections by where torch's nesting of the state dict ends and the keys of a module begin."""
    found: dict[str, Section] = {}
    for key, tensor in tensors.items():
        *outer, leaf = paths.get(key) or (key,)
        words = [str(word) for word in outer]
        # A module's keys have dots; words without any may go on inside of it.
        end = len(words) if "." in str(leaf) else _end(words)
        label = ".".join(words[:end])
        prefix = f"{label}." if label else ""
        section = found.setdefault(label, Section(label))
        section.add(key, bare(key.removeprefix(prefix)), bare(prefix), tensor)
    return found


def _end(words: Sequence[str]) -> int:
    """How many words of a nested dict are a section's name: up to its word for a model, else the first."""
    start = next((k for k, w in enumerate(words) if w in _OWN and w != _APP), None)
    if start is None:
        return min(len(words), 1 + sum(word == _APP for word in words[:1]))
    return next((k for k in range(start, len(words)) if words[k] not in _OWN), len(words))


def _by_word(tensors: Mapping[str, Tensor], configured: bool, asked: bool) -> dict[str, Section]:
    """Sections by first word, where nothing else is known of names and one is a word for another model."""
    found: dict[str, Section] = {}
    if configured and not asked:
        return found
    for key, tensor in tensors.items():
        word, _, name = bare(key).partition(".")
        if name:
            found.setdefault(word, Section(word)).add(key, name, f"{word}.", tensor)
    named = [s for s in found.values() if s.called_other]
    twins = [s for s in found.values() for o in named if s is not o and s.overlaps(o)]
    twins += [s for s in named if any(s is not o and s.overlaps(o) for o in twins)]
    if asked:
        return found
    return {s.label: s for s in found.values() if s in twins}


def _explained_model(
    found: Sequence[Section], where: str, paths: Paths
) -> tuple[Section, list[Section]]:
    """The section with a framework's own name, or the only one that holds its names, and other models.

    Another model holds all names that the model does, or has the word for one; what has some of them
    is carried name by name.
    """
    own = [s for s in found if s.own]
    among = own or [s for s in found if not any(s.lies_in(o) for o in found)]
    rivals = [s for s in among if not own or any(s.rivals(o) for o in among)]
    if len(rivals) > 1:
        raise _several(rivals, where)
    model = max(among, key=lambda s: len(s.names), default=Section(""))
    names = {name for s in own for name in s.unwrapped}
    others = [
        s
        for s in found
        if own and not s.own and (s.unwrapped.keys() >= names or _is_other(s, paths))
    ]
    return model, others


def _is_other(section: Section, paths: Paths) -> bool:
    """Whether a key of the nested dict that was saved calls a section one of several models."""
    return section.called_other and any(len(paths.get(key, ())) > 1 for key in section.names)


def _model_of(found: Sequence[Section], where: str, paths: Paths) -> tuple[Section, list[Section]]:
    """The section that is the model, and those that are other models; raise where several may be it."""
    named = [s for s in found if s.label]
    own = [s for s in named if s.own]
    carried = f", or carry all under their full names with --section {TOP}"
    if len(own) == 1:
        (model,) = own
        shared = [s for s in found if s is not model and s.overlaps(model)]
        others = [s for s in shared if model.within(s) or _is_other(s, paths)]
        if unclear := [s for s in shared if s not in others and s.rivals(model)]:
            raise _several([model, *unclear], where, carried)
        return model, others
    if rivals := [s for s in found if any(s.rivals(o) for o in found)]:
        raise _several(rivals, where, carried)
    alone = len(found) == 1 and len(named) == 1 and any("." in name for name in named[0].shapes)
    return (named[0] if alone else Section("")), []


def _several(rivals: Sequence[Section], where: str, carried: str = "") -> SectionError:
    listed = "".join(f"\n  {section}" for section in rivals)
    return SectionError(
        f"{len(rivals)} sections may be the model - at {where}{listed}",
        hint=f"choose one with --section {rivals[0].label or TOP} (section= in Python){carried}",
    )


def _choose(
    wanted: Sequence[str],
    found: Mapping[str, Section],
    tensors: Mapping[str, Tensor],
    where: str,
) -> tuple[Section, list[Section]]:
    """The section that the user names; all others are left out."""
    if len(wanted) > 1:
        raise UsageError(
            f"{len(wanted)} sections are named, {' and '.join(wanted)}, but only one can be the model",
            hint="name the section of the model and, after a comma, that of its optimizer",
        )
    name = "" if wanted[0] == TOP else wanted[0].strip(".")
    by_label = {s.label: s for s in found.values()}
    below = [s for s in by_label.values() if s.label.startswith(f"{name}.")]
    model = by_label.get(name)
    if model is None and len(below) > 1:
        raise _several(below, where)
    if model is None and below:
        model = below[0]
    if model is None:
        model = Section(name)
        prefix = f"{name}." if name else ""
        for key, tensor in tensors.items():
            if bare(key).startswith(prefix):
                model.add(key, bare(key).removeprefix(prefix), prefix, tensor)
        for section in by_label.values():
            section.names = {k: v for k, v in section.names.items() if k not in model.names}
    if not model.names:
        there = sorted({s.label or TOP for s in by_label.values()}) or sorted(
            {bare(key).partition(".")[0] for key in tensors}
        )
        raise SectionError(
            f"{where} has no section {wanted[0]!r}",
            hint=f"its sections: {', '.join(there[:8])}{', …' if len(there) > 8 else ''}",
        )
    return model, [s for s in by_label.values() if s is not model and s.names]


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
    left = [root for root in roots if not any(_belongs(root, other) for other in others)]
    mine = [root for root in left if model.label and _belongs(root, model)] or left
    tied = any(_belongs(root, model) for root in mine)
    if len(mine) == 1 and (tied or model.own or not others):
        return mine[0], None
    if not mine or (not tied and not model.own and any(other.own for other in others)):
        return None, None  # the optimizers are those of the section with a framework's own name
    listed = ", ".join(root.removesuffix(".") or TOP for root in mine)
    which = "is" if len(mine) == 1 else "are"
    return None, FamilyError(
        f"nothing says which optimizer belongs to section {model.label or TOP!r}: there {which}"
        f" {listed}"
        f" - at {where}",
        hint=f"name it too (--section {model.label or TOP},{mine[0].removesuffix('.')}), or"
        " leave optimizer"
        " state out (--optimizer drop)",
    )


def _belongs(root: str, section: Section) -> bool:
    """Whether an optimizer lies inside or beside a section, or has its word."""
    if not section.label:
        return False
    *parent, word = section.label.split(".")
    if root.startswith(f"{section.label}."):
        return True
    home = root.removesuffix(".").split(".")
    if parent and home[:-1] == parent and not all(p in _OWN for p in parent):
        return True
    return word not in _OWN and re.search(rf"(?:^|_){re.escape(word)}(?:_|$)", home[-1]) is not None


def _items(
    tensors: Mapping[str, Tensor],
    model: Section,
    others: Sequence[Section],
    left: Mapping[str, Sequence[str]],
    names: Mapping[str, str],
    state: Mapping[str, str],
    roots: Sequence[str],
    optimizer: str | None,
    objects: Sequence[str],
    unclear: IntarsiaError | None,
    asked: Sequence[str],
) -> Iterable[Item]:
    """One item a section; none where all there is is a model without a name."""
    if not (model.label or left or state or objects):
        return

    def size(keys: Iterable[str]) -> int:
        return sum(tensors[key].nbytes for key in keys)

    yield Item("section", model.label or TOP, Role.MODEL, Fate.READ, nbytes=size(names))
    models = {s.label for s in others}
    for label, keys in left.items():
        if keys:
            role = Role.OTHER_MODEL if label in models else Role.UNKNOWN
            why = (
                f"not the chosen section, {asked[0]}"
                if asked
                else (
                    f"another model; {model.label or TOP} is read (--section {label} reads this one)"
                )
            )
            yield Item("section", label or TOP, role, Fate.LEFT_OUT, why, size(keys))
    for root in roots:
        keys = [key for key, of in state.items() if of == root]
        kept = root == optimizer or unclear is not None
        fate, why = (Fate.READ, "") if kept else (Fate.LEFT_OUT, "the optimizer of another section")
        yield Item("section", root.removesuffix(".") or TOP, Role.OPTIMIZER, fate, why, size(keys))
    of = owner(roots)
    rest = dict.fromkeys(n.partition(".")[0] for n in objects if of(n) is None)
    for word in rest:
        if word not in models and word != model.label.partition(".")[0]:
            yield Item("section", word, Role.TRAINING, Fate.READ)

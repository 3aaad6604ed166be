"""Optimizer state, recognised by its form whatever the key above it.

    <root>state.<parameter>.<kind>     as torch flattens an optimizer's state dict, by name or number
    <root>param_groups. …              the settings of its groups
    optimizer.<kind>.<parameter>       as Intarsia spells it beside a model of the hub

A root is an optimizer's where it also has `param_groups`, where its last word says so, or where every
state in it is that of a tensor in the same checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from intarsia.errors import FormatError
from intarsia.format.naming.wrappers import bare
from intarsia.mesh import Shape
from intarsia.state.names import StateName

NUMBERED = "the optimizer's state is numbered, and nothing says which parameter each number means"
_STATE = re.compile(r"(?:^|(?<=\.))state\.(?P<param>.+)\.(?P<kind>[A-Za-z_0-9]+)\Z", re.DOTALL)
_GROUPS = re.compile(r"(?:^|(?<=\.))param_groups(?=\.|$)")
_WORD = re.compile(r"(?:^|\.)[^.]*optim[^.]*\.$", re.IGNORECASE)


def may_have_roots(names: Iterable[str]) -> bool:
    """Whether any name is like one of an optimizer's, asked of all of them at once."""
    text = "\n".join(["", *names])
    return any(word in text for word in ("state.", "param_groups", "\noptim"))


def may_be_optimizers(name: str) -> bool:
    """Whether a name could be one of an optimizer's, by the words in it.

    >>> may_be_optimizers("optim.lr"), may_be_optimizers("train_state.step")
    (True, False)
    """
    words = name.lower().split(".")
    return any("optim" in word or word in ("state", "param_groups") for word in words)


def roots_of(tensors: Mapping[str, Shape], objects: Iterable[str]) -> tuple[str, ...]:
    """The prefix of the names of each optimizer, in order of appearance; each ends in a dot, or is empty."""
    found: dict[str, None] = {}
    named = (n for n in (*tensors, *objects) if "param_groups" in n)
    grouped = {n[: m.start()] for n in named if (m := _GROUPS.search(n))}
    open_: dict[str, list[tuple[str, Shape]]] = {}
    for name, shape in tensors.items():
        if root := _named_root(name):
            found.setdefault(root)
        elif m := _state_search(name):
            root = name[: m.start()]
            if root in grouped:
                found.setdefault(root)
            else:
                open_.setdefault(root, []).append((m["param"], shape))
    found |= dict.fromkeys(sorted(grouped - found.keys()))
    found |= dict.fromkeys(_of_tensors(open_, tensors))
    return tuple(found)


def _state_search(name: str) -> re.Match[str] | None:
    return _STATE.search(name) if "state." in name else None


def _named_root(name: str) -> str | None:
    """The root that a word of a name says is an optimizer's."""
    if m := _state_search(name):
        root = name[: m.start()]
        return root if _WORD.search(root) else None
    return next((r for r in ("optim.", "optimizer.") if name.startswith(r)), None)


def _of_tensors(
    roots: Mapping[str, list[tuple[str, Shape]]], tensors: Mapping[str, Shape]
) -> Iterator[str]:
    """The roots all of whose states are those of tensors in the same checkpoint."""
    if not roots:
        return
    ends: dict[str, set[Shape]] = {}
    for name, shape in tensors.items():
        words = bare(name).split(".")
        for k in range(len(words)):
            ends.setdefault(".".join(words[k:]), set()).add(shape)
    for root, held in roots.items():
        shapes = [(ends.get(bare(param), set()), shape) for param, shape in held]
        if all(known and (not shape or shape in known) for known, shape in shapes):
            yield root


def state_in(name: str, root: str) -> StateName | None:
    """The state that a name below a root is; None for what else an optimizer keeps."""
    m = _STATE.match(name, len(root))
    return StateName(m["kind"], m["param"]) if m and name.startswith(root) else None


def owner(roots: Iterable[str]) -> Callable[[str], str | None]:
    """Which of the roots a name belongs to: all of it where the root's word says so, else its two forms."""
    ordered = sorted(roots, key=len, reverse=True)

    def find(name: str) -> str | None:
        for root in ordered:
            if name.startswith(root):
                rest = name[len(root) :]
                if _WORD.search(root) or rest.startswith(("state.", "param_groups")):
                    return root
        return None

    return find


def is_numbered_name(name: str) -> bool:
    """Whether a state belongs to a number, as Intarsia names it."""
    state = StateName.of(name)
    return state is not None and state.parameter.isdecimal()


def unnumbered_error(why: str, where: str) -> FormatError:
    """What to raise for whoever needs the parameters of numbered states."""
    return FormatError(
        f"{NUMBERED}{': ' if why else ''}{why}",
        at=where,
        hint="give the optimizer model.named_parameters() and save again, save its state by name"
        " (torch's get_optimizer_state_dict), or take only the weights with --optimizer drop"
        " (optimizer=None in load)",
    )

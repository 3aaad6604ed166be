"""What a checkpoint holds beside the models that are loaded from it, and is only noted: counters of a run, other models."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from intarsia.format.naming.section import TOP
from intarsia.live.model.contents import ModelContents
from intarsia.planning.inventory import Role, items_left_out
from intarsia.planning.manifest import Manifest
from intarsia.state.names import is_state


@dataclass(frozen=True)
class Beside:
    """Tensors of whole numbers that a run saved, and the sections that are other models than the one that is read."""

    counters: frozenset[str] = frozenset()
    models: tuple[str, ...] = ()

    @staticmethod
    def of(manifest: Manifest, contents: ModelContents, taken: Collection[str]) -> Beside:
        """What lies beside the tensors that are `taken`."""
        if manifest.section == (TOP,):
            return Beside(_counters_beside_keys(manifest, contents))
        items = [x for x in manifest.inventory if x.kind == "section"]
        words = {x.name for x in items if x.role is Role.TRAINING}
        held = manifest.stored.items() if words else ()
        own = {n for n, x in held if x.on_disk == n and n.partition(".")[0] in words}
        chosen = bool(manifest.section)
        others = [] if chosen else [x for x in items_left_out(items) if x.role is Role.OTHER_MODEL]
        counters = frozenset(n for n in own.difference(taken) if _is_whole(manifest, n))
        return Beside(counters, tuple(x.name for x in others))

    @property
    def notes(self) -> Mapping[str, Collection[str]]:
        """The reasons why something is not loaded, with the names of what is not."""
        return {
            "a run saved them beside the model": self.counters,
            "they are other models (section= loads one of them)": self.models,
        }


def _counters_beside_keys(manifest: Manifest, contents: ModelContents) -> frozenset[str]:
    """The tensors below keys that a dict of several does not have, where all below one are of whole numbers."""
    if not any(contents.keys.values()):
        return frozenset()  # names of tensors, in which no word is a key
    given = (contents.modules, contents.loose, contents.leaves, contents.optimizers)
    asked = {name.partition(".")[0] for names in given for name in names}
    sections: dict[str, list[str]] = {}
    for name in manifest.logical:
        word = name.partition(".")[0]
        if word not in asked and not is_state(name):
            sections.setdefault(word, []).append(name)
    whole = (ns for ns in sections.values() if all(_is_whole(manifest, n) for n in ns))
    return frozenset(n for ns in whole for n in ns)


def _is_whole(manifest: Manifest, name: str) -> bool:
    return not manifest.logical[name].dtype.floating

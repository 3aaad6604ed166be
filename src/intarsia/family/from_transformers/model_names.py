"""Which stored tensors Transformers finds by their names, and which of a model's it does not find.

Transformers makes new weights in place of those that it does not find, so that a folder whose names
are another's loads as a random model.  What it takes for a name of the model are the rules by which it
loads: names that it renames, fuses or splits, and those that lack the base model's prefix or have it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from intarsia.errors import FamilyError
from intarsia.family.config.fields import Config
from intarsia.family.from_transformers.rules import rows_of_skeleton, shapes_on_disk, sorted_rules
from intarsia.family.from_transformers.skeleton import Skeleton, leads_out
from intarsia.mesh import Shape

_NUMBERED = re.compile(r"\.\d+\.")


@dataclass(frozen=True)
class ModelNames:
    """The names under which Transformers finds the tensors of one model.

    `certain` says that the configuration names its class.
    """

    model: Skeleton
    certain: bool

    @staticmethod
    def of(config: Config, stored: Collection[str]) -> ModelNames:
        """The names of the model that is described, which `stored` ones may be; raise where that cannot be told.

        A configuration that names no class may be that of a model with a head, or without.
        """
        if field := leads_out(config):
            raise FamilyError(f"config.json leads out of Transformers by {field}")
        listed = config.get("architectures")
        kinds = [kind for kind in listed or () if isinstance(kind, str)]
        names = ModelNames(Skeleton.of(config), bool(kinds))
        if kinds and names.model.kind not in kinds:
            raise FamilyError(f"Transformers has no class {kinds[0]}")
        if not names.model.fits_type:
            kind, model_type = names.model.kind, config.get("model_type")
            raise FamilyError(f"config.json names {kind}, which is no class for {model_type!r}")
        if not kinds and not names.taken(stored):
            with suppress(FamilyError):
                inner = ModelNames(Skeleton.of(config, base=True), certain=False)
                return inner if inner.taken(stored) else names
        return names

    def taken(self, stored: Iterable[str]) -> dict[str, str]:
        """The stored names that are found, each with the tensor of the module that it is, or is a part of."""
        return {key: name for key, name, _ in self._caught(stored)}

    def _caught(self, stored: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
        """As `taken`, and whether the tensor of the module is made of the stored one by a converter."""
        model = self.model
        renamings, converters = sorted_rules(model.rules)
        rename = model.loading.rename_source_key
        for key in sorted(stored, key=model.loading.dot_natural_key):
            name, made = rename(key, renamings, converters, model.base, model.shapes)
            if name not in model.shapes:
                # A pattern may have caught a name that was right.
                name, made = rename(key, [], [], model.base, model.shapes)
            if name in model.shapes:
                yield key, name, made is not None

    def are_below_its_word(self, taken: Collection[str]) -> bool:
        """Whether all names are those of the module below the word that Transformers has for the base model."""
        shapes, word = self.model.shapes, f"{self.model.base}."
        return self._has_a_head and all(
            name.startswith(word) and name.removeprefix(word) in shapes for name in taken
        )

    def misshapen(self, stored: Mapping[str, Shape]) -> Iterator[tuple[str, Shape]]:
        """The names of parameters that are stored in another shape than the model's, which is given: none loads them."""
        on_disk = shapes_on_disk(self.model) if self.certain else {}
        for key, name, made in self._caught(stored if self.certain else ()):
            want = on_disk.get(key) if made else self.model.shapes[name]
            if name in self.model.trained and want is not None and want != stored[key]:
                yield key, want

    def beyond(self, strange: Iterable[str], taken: Iterable[str]) -> Iterator[str]:
        """Names that are not found, of layers that are like the model's and that it does not have.

        A layer that holds tensors of no known name as well is one that predicts further tokens.
        """
        known = {_NUMBERED.sub(".*.", key) for key in taken}
        layers: dict[str, list[str]] = {}
        for name in strange:
            if (number := _NUMBERED.search(name)) and not self.model.passes_over(name):
                layers.setdefault(name[: number.end()], []).append(name)
        for names in layers.values():
            if all(_NUMBERED.sub(".*.", name) in known for name in names):
                yield from names

    def sections(self, stored: Iterable[str]) -> dict[str, int]:
        """The prefix of names that would be found without it, and the number of these names."""
        ways = [
            [(name[:k], name[k + 1 :]) for k, letter in enumerate(name) if letter == "."]
            for name in stored
        ]
        known = self.taken({rest for each in ways for _, rest in each})
        before = (next((start for start, rest in each if rest in known), None) for each in ways)
        return Counter(start for start in before if start is not None)

    def missing(self, taken: dict[str, str]) -> tuple[dict[str, Shape], list[str]]:
        """The tensors of layers that are not stored, by the hub's names; and other parameters of the module."""
        model = self.model
        on_disk = shapes_on_disk(model)
        rows, reached = rows_of_skeleton(model, on_disk), set(taken.values())
        split = {name for key, name in taken.items() if key != name and key not in on_disk}
        begun = {part for name in split if name in rows for part in rows[name].tensors}
        layers, others = dict[str, Shape](), list[str]()
        for name in self._must_be_there(reached):
            parts = rows[name].tensors if name in rows else (name,)
            held = [part for part in parts if part in taken]
            if not held and (name in reached or not begun.isdisjoint(parts)):
                continue
            lost = [part for part in parts if part not in held]
            if self.certain and self._is_in_a_layer(name):
                layers |= {part: on_disk.get(part, model.shapes[name]) for part in lost}
            elif lost:
                others.append(name)
        return layers, others

    def _must_be_there(self, reached: Collection[str]) -> Iterator[str]:
        tied = self.model.tied
        twins = {twin for name, twin in tied.items() if name in reached}
        free = (n for n in self.model.shapes if n in self.model.trained)
        return (n for n in free if n not in tied and n not in twins)

    def _is_in_a_layer(self, name: str) -> bool:
        """Whether it is in a list of modules of the base model, which no head replaces."""
        based = name.startswith(f"{self.model.base}.") or not self._has_a_head
        return based and _NUMBERED.search(name) is not None

    @property
    def _has_a_head(self) -> bool:
        """Whether the base model is a part of the module, under the word for it."""
        base = f"{self.model.base}."
        return any(each.startswith(base) for each in self.model.shapes)

"""A quantised weight and its parts, as values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Protocol

from intarsia.dtypes import DType
from intarsia.frozen import frozen, frozen_open
from intarsia.mesh import Shape
from intarsia.quantised.scheme import Scheme

UNKNOWN = "unknown"
"""The form of weights in a scheme that is not known: all tensors of a module."""


class PartRole(StrEnum):
    """What a stored tensor is to the weight that it belongs to."""

    WEIGHT = "weight"
    SCALE = "scale"
    WHOLE_SCALE = "scale of the whole tensor"
    ACTIVATION = "scale of the activations"
    ZERO = "zero point"
    ORDER = "order of the groups"
    OTHER = "other"

    @property
    def is_scale(self) -> bool:
        return self in (PartRole.SCALE, PartRole.WHOLE_SCALE, PartRole.ACTIVATION)


class Typed(Protocol):
    """What is known of a tensor from its header."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def shape(self) -> Shape: ...


@frozen
class WeightPart:
    """One stored tensor of a quantised weight; `word` is what its name adds to the weight's."""

    name: str
    word: str
    role: PartRole
    dtype: DType
    shape: Shape


def weight_part(tensor: Typed, word: str, role: PartRole) -> WeightPart:
    return WeightPart(tensor.name, word, role, tensor.dtype, tensor.shape)


@frozen
class QuantisedWeight:
    """A weight and all that its numbers need; `of` is the name that it has where it is not quantised.

    `packed` says that the stored weight has not the shape of the weight it stands for.
    """

    of: str
    form: str
    main: WeightPart
    others: tuple[WeightPart, ...]
    packed: bool
    scheme: Scheme | None = None

    @property
    def label(self) -> str:
        """How it is quantised, in words."""
        if self.scheme is not None:
            return str(self.scheme)
        return f"{self.main.dtype} with scales" if self.form == "scaled" else self.form

    @property
    def is_bytes(self) -> bool:
        """Whether an element type of numbers holds codes of four bits, so that its elements are no numbers."""
        return self.form == "nf4" and self.main.dtype.floating

    @property
    def template(self) -> Hashable:
        """What it has in common with weights of its scheme that differ by name alone."""
        others = [(part.word, part.dtype.name, part.shape) for part in self.others]
        main = self.main
        return self.form, self.packed, main.word, main.dtype.name, main.shape, *others

    @property
    def own_shapes(self) -> tuple[WeightPart, ...]:
        """The parts whose shapes are not those of the model's weights, whatever their names."""
        return () if not self.packed else self.parts if self.form == UNKNOWN else (self.main,)

    @property
    def parts(self) -> tuple[WeightPart, ...]:
        return (self.main, *self.others)

    def renamed(self, of: str, names: Sequence[str]) -> QuantisedWeight:
        """A weight that differs from this one by its name and those of its parts alone."""
        main, *others = (
            WeightPart(name, part.word, part.role, part.dtype, part.shape)
            for name, part in zip(names, self.parts, strict=True)
        )
        return QuantisedWeight(of, self.form, main, tuple(others), self.packed, self.scheme)


@frozen
class AlikeWeights:
    """Quantised weights that differ by name alone: the first, and of all the name and those of the parts."""

    first: QuantisedWeight
    names: list[tuple[str, tuple[str, ...]]]

    @property
    def weights(self) -> Iterator[QuantisedWeight]:
        return (self.first.renamed(of, names) for of, names in self.names)


@frozen
class ScaleFault:
    """What headers show to be wrong with the scales of a weight."""

    kind: str
    tensors: tuple[str, ...]
    text: str


@frozen_open
class QuantisedWeights:
    """The quantised weights of a checkpoint, what is wrong with them, and remarks.

    `alike` are the weights by what they have in common; `order` gives for each weight, as they are
    stored, which of those it is among.
    """

    alike: tuple[AlikeWeights, ...] = ()
    faults: tuple[ScaleFault, ...] = ()
    notes: tuple[str, ...] = ()
    order: tuple[int, ...] = ()

    @staticmethod
    def of(weights: Iterable[QuantisedWeight]) -> QuantisedWeights:
        """Weights that are all of one scheme."""
        kinds: dict[Hashable, AlikeWeights] = {}
        order = []
        for w in weights:
            kind = kinds.setdefault(w.template, AlikeWeights(w, []))
            kind.names.append((w.of, tuple(part.name for part in w.parts)))
            order.append(w.template)
        numbers = {template: k for k, template in enumerate(kinds)}
        return QuantisedWeights(tuple(kinds.values()), order=tuple(map(numbers.__getitem__, order)))

    def __bool__(self) -> bool:
        return bool(self.alike or self.faults)

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(kind.first.label for kind in self.alike)) or "quantised"

    @cached_property
    def weights(self) -> tuple[QuantisedWeight, ...]:
        """Every weight, as they are stored."""
        kinds = [kind.weights for kind in self.alike]
        return tuple([next(kinds[k]) for k in self.order])

    @cached_property
    def kind_of_part(self) -> Mapping[str, int]:
        """For each part of a weight, which of those that are alike it is among."""
        found: dict[str, int] = {}
        for k, kind in enumerate(self.alike):
            found |= dict.fromkeys(chain.from_iterable(names for _, names in kind.names), k)
        return found

    @cached_property
    def by_part(self) -> Mapping[str, tuple[QuantisedWeight, WeightPart]]:
        """The weight that each stored tensor is a part of."""
        return {part.name: (w, part) for w in self.weights for part in w.parts}


NOT_QUANTISED = QuantisedWeights()

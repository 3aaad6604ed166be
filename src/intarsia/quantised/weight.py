"""A quantised weight and its parts, as values."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import StrEnum
from functools import cached_property

from intarsia.dtypes import DType
from intarsia.frozen import frozen, frozen_open
from intarsia.mesh import Shape
from intarsia.quantised.scheme import Scheme


class Role(StrEnum):
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
        return self in (Role.SCALE, Role.WHOLE_SCALE, Role.ACTIVATION)


@frozen
class Part:
    """One stored tensor of a quantised weight; `word` is what its name adds to the weight's."""

    name: str
    word: str
    role: Role
    dtype: DType
    shape: Shape


@frozen
class QuantisedWeight:
    """A weight and all that its numbers need; `of` is the name that it has where it is not quantised.

    `packed` says that the stored weight has not the shape of the weight it stands for.
    """

    of: str
    form: str
    main: Part
    others: tuple[Part, ...]
    packed: bool
    scheme: Scheme | None = None

    @property
    def label(self) -> str:
        """How it is quantised, in words."""
        if self.scheme is not None:
            return str(self.scheme)
        return f"{self.main.dtype} with scales" if self.form == "scaled" else self.form

    @property
    def template(self) -> Hashable:
        """What it has in common with weights of its scheme that differ by name alone."""
        others = [(part.word, part.dtype.name, part.shape) for part in self.others]
        main = self.main
        return self.form, self.packed, main.word, main.dtype.name, main.shape, *others

    @property
    def own_shapes(self) -> tuple[Part, ...]:
        """The parts whose shapes are not those of the model's weights, whatever their names."""
        return () if not self.packed else self.parts if self.form == "unknown" else (self.main,)

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.main, *self.others)


@frozen
class ScaleFault:
    """What headers show to be wrong with the scales of a weight."""

    kind: str
    tensors: tuple[str, ...]
    text: str


@frozen_open
class Quantised:
    """The quantised weights of a checkpoint, what is wrong with them, and remarks."""

    weights: tuple[QuantisedWeight, ...] = ()
    faults: tuple[ScaleFault, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.weights or self.faults)

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(w.label for w in self.weights)) or "quantised"

    @cached_property
    def by_part(self) -> Mapping[str, tuple[QuantisedWeight, Part]]:
        """The weight that each stored tensor is a part of."""
        return {part.name: (w, part) for w in self.weights for part in w.parts}


NOT_QUANTISED = Quantised()

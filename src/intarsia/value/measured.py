"""Values whose parts are made from the numbers that they store: scales, from blocks of a tensor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from intarsia.dtypes import DType
from intarsia.value.base import Value, Window
from intarsia.value.bits import Bits
from intarsia.value.plain import PLAIN


class Measured(Value):
    """A value with parts that can be written.

    Each part has one element for each block of the tensor.  It is made first, of all numbers of the
    block; `encode` then finds the elements of the parts in the window, as `decode` does.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def stored_type(self) -> DType:
        """The element type of what is stored for the numbers themselves."""

    @property
    @abstractmethod
    def part_types(self) -> Mapping[str, DType]:
        """The names of its parts, and their element types."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.part_types)

    @property
    def as_target(self) -> Value:
        return PLAIN

    @abstractmethod
    def block(self, part: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the blocks of a tensor for each of which a part has one element."""

    @abstractmethod
    def measure(self, part: str, numbers: Window) -> Bits:
        """The elements of a part for numbers of whole blocks, one for each of them; edges may be smaller."""

"""A value: what is stored for the numbers of a tensor, and how numbers come of it.

Elements move as raw bits.  Where source and destination store a number in the same way, no number is
ever looked at; where they do not, the two values decode and encode windows of elements.  Whoever plans,
reads, sums or verifies asks the value and knows none by name, so that one more is one more file here.

A value may need further stored tensors to tell a number (`parts`: the scales of a block-scaled weight).
The manifest has those in `Manifest.parts`, each with a layout that says which elements it serves, however
many share one of its own; a window brings what it needs of them, element by element.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import ClassVar

from intarsia.dtypes import BY_NAME, DType
from intarsia.frozen import frozen
from intarsia.value.bits import Bits, Numbers, as_float64, bits_dtype

F64 = BY_NAME["F64"]


@frozen
class Window:
    """Some elements: their bits, their element type, and what a value's parts hold for each of them."""

    bits: Bits
    dtype: DType
    parts: Mapping[str, Window] = field(default_factory=dict)

    def reshape(self, *shape: int) -> Window:
        """The same elements in another shape."""
        return self._each(lambda bits: bits.reshape(shape))

    def __getitem__(self, some: slice) -> Window:
        return self._each(lambda bits: bits[some])

    def _each(self, take: Callable[[Bits], Bits]) -> Window:
        parts = {name: part._each(take) for name, part in self.parts.items()}
        return Window(take(self.bits), self.dtype, parts)


class Value(ABC):
    """A way to store numbers; equal values store them alike.  The sums of tensors are of decoded numbers."""

    __slots__ = ()

    is_plain: ClassVar[bool] = False
    """Whether the stored element is the number itself."""
    recentres: ClassVar[bool] = False
    """Whether what it rounds is a norm that is centred on another number."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of further stored tensors that its numbers need."""
        return ()

    @property
    def as_target(self) -> Value:
        """How numbers that it stores are written again, where nothing else is asked."""
        return self

    def number_type(self, stored: DType) -> DType:
        """The element type of its numbers, where elements of type `stored` lie in the file."""
        return stored

    @abstractmethod
    def decode(self, stored: Window, into: DType) -> Bits:
        """The numbers of stored elements, rounded to an element type."""

    @abstractmethod
    def encode(self, numbers: Window, into: DType) -> Bits:
        """What is stored for numbers, in an element type."""

    def joined(self, stored: Window) -> tuple[Value, Window]:
        """Stored elements made whole with those of its parts, where that takes no arithmetic, and how they store numbers."""
        return self, stored

    def recast(self, stored: Window, into: DType) -> Bits:
        """Stored elements as this value stores their numbers in another element type."""
        numbers = Window(self.decode(stored, F64), F64, stored.parts)
        return self.encode(numbers, into)

    def numbers(self, stored: Window) -> Numbers:
        """The numbers of stored elements in double precision."""
        return as_float64(self.decode(stored, F64), F64)

    def unrounded(self, numbers: Numbers) -> Numbers:
        """What would be stored for numbers of double precision if no type had to hold it."""
        window = Window(numbers.view(bits_dtype(F64)), F64)
        return as_float64(self.encode(window, F64), F64)

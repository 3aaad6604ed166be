"""Numbers stored as they are, in whatever element type."""

from __future__ import annotations

from typing import ClassVar

from intarsia.dtypes import DType
from intarsia.frozen import frozen
from intarsia.value.base import Value, Window
from intarsia.value.bits import Bits, Numbers, as_float64
from intarsia.value.cast import cast


@frozen
class Plain(Value):
    """Each stored element is the number."""

    is_plain: ClassVar[bool] = True

    def decode(self, stored: Window, into: DType) -> Bits:
        return cast(stored.bits, stored.dtype, into)

    def encode(self, numbers: Window, into: DType) -> Bits:
        return cast(numbers.bits, numbers.dtype, into)

    def recast(self, stored: Window, into: DType) -> Bits:
        return cast(stored.bits, stored.dtype, into)

    def numbers(self, stored: Window) -> Numbers:
        return as_float64(stored.bits, stored.dtype)

    def unrounded(self, numbers: Numbers) -> Numbers:
        return numbers

    def __str__(self) -> str:
        return "plain"


PLAIN = Plain()

"""Numbers stored with a constant added: norms that a framework centres on zero, and the hub on one."""

from __future__ import annotations

from typing import ClassVar

from intarsia.dtypes import DType
from intarsia.frozen import frozen
from intarsia.value.base import Value, Window
from intarsia.value.bits import Bits, Numbers, as_float64
from intarsia.value.cast import bits_of, cast, check_cast, has_torch, in_torch, torch_tensor
from intarsia.value.numpy_cast import in_stretches, rounded
from intarsia.value.plain import PLAIN


@frozen
class Shift(Value):
    """Each stored element is the number plus `by`."""

    by: float

    recentres: ClassVar[bool] = True

    def decode(self, stored: Window, into: DType) -> Bits:
        return _added(stored, into, -self.by)

    def encode(self, numbers: Window, into: DType) -> Bits:
        return _added(numbers, into, self.by)

    def recast(self, stored: Window, into: DType) -> Bits:
        return cast(stored.bits, stored.dtype, into)

    def numbers(self, stored: Window) -> Numbers:
        return as_float64(stored.bits, stored.dtype) - self.by

    def unrounded(self, numbers: Numbers) -> Numbers:
        return numbers + self.by

    def __str__(self) -> str:
        return f"shifted by {self.by}"


def shifted(by: float) -> Value:
    """The value of numbers that are stored with `by` added, which may be nothing."""
    return Shift(by) if by else PLAIN


def _added(window: Window, into: DType, by: float) -> Bits:
    """The bits of numbers plus `by`.

    Training shifts the rounded weight, so a narrower one is rounded before as well as after.
    """
    bits, src = window.bits, window.dtype
    check_cast(src, into)
    narrows = into.itemsize < src.itemsize
    if has_torch():
        tensor = torch_tensor(bits, src)
        tensor = in_torch(tensor, into) if narrows else tensor
        tensor = (tensor.double() if src.name == "F64" else tensor.float()) + by
        return bits_of(in_torch(tensor, into), into, bits.shape)

    def add(numbers: Numbers) -> Numbers:
        if narrows:
            numbers = as_float64(rounded(numbers, into), into)
        found: Numbers = numbers.astype("f8" if src.name == "F64" else "f4") + by
        return found.astype("f8")

    return in_stretches(bits, src, into, add)

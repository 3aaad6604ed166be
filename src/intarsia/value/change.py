"""How elements change on their way from one tensor to another: not at all, as a rule."""

from __future__ import annotations

from intarsia.dtypes import BY_NAME, DType, is_lossless
from intarsia.frozen import frozen
from intarsia.value.base import Value, Window
from intarsia.value.bits import Bits, Numbers, as_float64
from intarsia.value.plain import PLAIN

_F32, _F64 = BY_NAME["F32"], BY_NAME["F64"]


@frozen
class Change:
    """From the element type and value of a source to those of a destination."""

    src: DType
    dst: DType
    src_value: Value = PLAIN
    dst_value: Value = PLAIN

    @property
    def is_none(self) -> bool:
        """Whether the bits stay as they are."""
        return (self.src is self.dst or self.src == self.dst) and self.keeps_value

    @property
    def keeps_value(self) -> bool:
        """Whether both sides store numbers alike, if in different element types."""
        return self.src_value is self.dst_value or self.src_value == self.dst_value

    @property
    def is_lossless(self) -> bool:
        """Whether no number can change."""
        return self.keeps_value and is_lossless(self.src, self.dst)

    @property
    def recentres(self) -> bool:
        """Whether norms change their centre, and no more."""
        values = (self.src_value, self.dst_value)
        return self.src == self.dst and all(v.is_plain or v.recentres for v in values)

    @property
    def back(self) -> Change:
        """The change that undoes this one, beside what was rounded."""
        return Change(self.dst, self.src, self.dst_value, self.src_value)

    def of(self, window: Window) -> Bits:
        """The destination's bits for elements of the source."""
        src, window = self.src_value.joined(window)
        dst = self.dst_value
        if src is dst or src == dst:
            return src.recast(window, self.dst)
        if dst.is_plain:
            return src.decode(window, self.dst)
        if not src.is_plain:
            wide = _F64 if window.dtype == _F64 else _F32
            window = Window(src.decode(window, wide), wide, window.parts)
        return dst.encode(window, self.dst)

    def compared(self, before: Window, after: Bits) -> tuple[Numbers, Numbers]:
        """What the destination would hold if no number had to be rounded, and what it holds."""
        found = as_float64(after, self.dst)
        if self.keeps_value:
            return as_float64(before.bits, self.src), found
        return self.dst_value.unrounded(self.src_value.numbers(before)), found

"""Main weights stored as their lower half alone: the upper half is the weight, which is rounded to bf16.

TransformerEngine's Adam keeps them so (`store_param_remainders`).  It rounds by the lower half's sign alone, so a
half that is negative belongs to the number below the weight.
"""

from __future__ import annotations

import numpy as np

from intarsia.dtypes import BY_NAME, DType
from intarsia.errors import FormatError
from intarsia.frozen import frozen
from intarsia.value.base import Value, Window
from intarsia.value.bits import Bits, Numbers, as_float64
from intarsia.value.plain import PLAIN

_F32 = BY_NAME["F32"]


@frozen
class Remainder(Value):
    """Each stored element is the lower half of a number that is stored as `of`; `weight` holds the upper one."""

    weight: str
    of: Value = PLAIN

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.weight,)

    @property
    def as_target(self) -> Value:
        return self.of

    def number_type(self, stored: DType) -> DType:
        return _F32

    def joined(self, stored: Window) -> tuple[Value, Window]:
        held = as_float64(stored.bits, stored.dtype)
        with np.errstate(invalid="ignore"):
            lower = held.astype(np.int16).astype(np.int64)
        if (other := held[lower != held]).size:
            raise FormatError(
                f"what bf16 `{self.weight}` lacks of its main weights is whole numbers of 16 bits,"
                f" and {other.size:,} of {held.size:,} are not: the first is {float(other[0])!r}",
                hint="convert with --optimizer drop, or save again without --use-precision-aware-optimizer",
            )
        upper = stored.parts[self.weight].bits.astype(np.int64) - (lower < 0)
        whole = (upper << 16) | (lower & 0xFFFF)
        return self.of, Window(whole.astype(np.uint32), _F32)

    def decode(self, stored: Window, into: DType) -> Bits:
        value, whole = self.joined(stored)
        return value.decode(whole, into)

    def encode(self, numbers: Window, into: DType) -> Bits:
        raise NotImplementedError  # the prover refuses targets whose values have parts

    def numbers(self, stored: Window) -> Numbers:
        value, whole = self.joined(stored)
        return value.numbers(whole)

    def __str__(self) -> str:
        return f"the lower half of a number, the upper one of which is `{self.weight}`"

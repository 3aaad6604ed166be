"""The element type of a tensor that is written, where the user asked for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from intarsia.dtypes import DType, is_lossless
from intarsia.family.kept_in_fp32 import is_kept


def cast_to(
    dtype: DType, asked: DType | None, names: Iterable[str], config: Mapping[str, Any] | None
) -> DType:
    """The type that was asked for; what is no float, is quantised, or is kept in fp32 has its own.

    `names` are the logical tensors that the elements belong to.
    """
    if asked is None or not dtype.floating or dtype.itemsize == 1:
        return dtype
    narrower = asked.itemsize < 4 and not is_lossless(dtype, asked)
    kept = narrower and any(is_kept(n, config, asked.name) for n in names)
    return dtype if kept else asked

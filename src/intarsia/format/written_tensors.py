"""What becomes of a source's tensors, whatever is written: which are left out, and their element types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from intarsia.dtypes import DType, is_lossless
from intarsia.errors import UnsupportedError, UsageError
from intarsia.family.config.kept_in_fp32 import is_kept
from intarsia.planning.inventory import Reason
from intarsia.planning.manifest import Manifest
from intarsia.state.names import is_state, parameter_of

_DROPPED = Reason("optimizer state, dropped as asked", lost=True)


def tensors_left_out(
    src: Manifest, tied: Mapping[str, str], optimizer: str
) -> Iterator[tuple[str, Reason]]:
    """The logical tensors that are not written, and why."""
    if not tied and optimizer != "drop":
        return
    for name in src.logical:
        of = parameter_of(name)
        if of in tied:
            yield name, Reason(f"{of} is tied to {tied[of]} by the configuration")
        elif is_state(name) and optimizer == "drop":
            yield name, _DROPPED


def written_type(name: str, of: Sequence[str], src: Manifest, asked: DType | None) -> DType:
    """The element type of a tensor that is made of the logical tensors `of`; what is absent has the source's."""
    held = src.logical
    if asked is None and len(of) == 1 and of[0] in held:
        return held[of[0]].dtype
    if asked is None:
        types = [held[n].dtype for n in of if n in held]
    else:
        each = ((held[n].dtype, (parameter_of(n),)) for n in of if n in held)
        types = [cast_to(dtype, asked, names, src.config) for dtype, names in each]
    found = {dtype.name for dtype in types}
    if len(found) > 1:
        raise UsageError(
            f"`{name}` would hold {', '.join(sorted(found))}",
            hint="choose one element type with --dtype",
        )
    if types:
        return types[0]
    if not src.absent:
        # Nothing says what a tensor of no elements is called in the source.
        raise UnsupportedError(
            f"`{name}` has no elements and another name in {src.path}, so that its element type is unknown",
            hint="keep the names of the source with --dialect same",
        )
    return cast_to(src.absent[0].dtype, asked, of, src.config)


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

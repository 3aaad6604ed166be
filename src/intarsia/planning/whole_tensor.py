"""A tensor that lies whole in one stretch of a file, as most do: what its header says of it, and no more.

A checkpoint of 90,000 tensors is opened in half the time where a `Stored` is made of each when it is
asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from intarsia.dtypes import DType
from intarsia.layout import whole_layout
from intarsia.mesh import Box, Rule, Shape
from intarsia.planning.made_when_asked import MadeWhenAsked
from intarsia.planning.manifest import Chunk, Logical, Stored


class WholeTensor(NamedTuple):
    """A tensor under its name on disk; `start_bytes` counts from the beginning of the file."""

    name: str
    dtype: DType
    shape: Shape
    start_bytes: int
    length_bytes: int
    file: str

    @property
    def key(self) -> str:
        return self.name

    @property
    def nbytes(self) -> int:
        return self.length_bytes

    def stored(self, rule: Rule = Rule()) -> Stored:
        """The tensor as all of the logical one of its name; `rule` says how a mesh cuts it."""
        name, dtype, shape, start_bytes, length_bytes, file = self
        chunk = Chunk(_whole(shape), file, start_bytes, length_bytes)
        return Stored(name, dtype, whole_layout(name, shape), (chunk,), rule, name)

    def logical(self) -> Logical:
        """The logical tensor of its name, where it is all of that."""
        return Logical(self.name, self.shape, self.dtype)


_whole = lru_cache(maxsize=4096)(Box.whole)
"""One box for all tensors of a shape."""


def not_whole(stored: Mapping[str, Stored]) -> list[Stored]:
    """The stored tensors that are not whole; no value is made of the others."""
    if not isinstance(stored, MadeWhenAsked):
        return [*stored.values()]
    return [stored[name] for name, x in stored.held.items() if not isinstance(x, WholeTensor)]


def types_of(logical: Mapping[str, Logical], names: Iterable[str]) -> Mapping[str, DType]:
    """The element types, by name, of those of the tensors that there are; no value is made of one that is whole."""
    held: Mapping[str, Logical | WholeTensor]
    held = logical.held if isinstance(logical, MadeWhenAsked) else logical
    return {x.dtype.name: x.dtype for x in map(held.get, names) if x is not None}

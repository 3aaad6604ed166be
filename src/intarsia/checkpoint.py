"""An opened checkpoint: logical tensors by name, of which only the bytes asked for are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.dtypes import DType
from intarsia.errors import UsageError
from intarsia.format.base import Located
from intarsia.formats import folder_of, format_named
from intarsia.layout import Layout, Piece
from intarsia.mesh import Box, Mesh, Shape
from intarsia.planning.copy import Copy
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored, Target
from intarsia.run.gather import Bytes, gather
from intarsia.run.source import Source, fill_box
from intarsia.run.values import as_float64, bits_dtype

if TYPE_CHECKING:
    import torch


class Checkpoint(Mapping[str, "Tensor"]):
    """A checkpoint as a mapping from logical names to tensors that are not yet read."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._folder = folder_of(manifest)
        self._folder.hold()
        self._source = Source(manifest, format_named(manifest.format), self._folder)

    @property
    def format(self) -> str:
        return self.manifest.format

    @property
    def family(self) -> str | None:
        return self.manifest.family

    @property
    def config(self) -> Mapping[str, Any] | None:
        return self.manifest.config

    @property
    def read_bytes(self) -> int:
        """How many bytes of tensors and their wrapping were read so far."""
        return self._folder.read_bytes

    def __getitem__(self, name: str) -> Tensor:
        try:
            return Tensor(self, self.manifest.logical[name])
        except KeyError:
            raise KeyError(f"{name!r} is not in {self.manifest.path}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.logical)

    def __len__(self) -> int:
        return len(self.manifest.logical)

    def shard(self, mesh: str | Mapping[str, int] | Mesh, rank: int) -> dict[str, torch.Tensor]:
        """What one rank of a mesh holds, by stored name; only its own bytes are read."""
        where = Mesh.parse(mesh)
        found = {}
        for stored in self.manifest.stored.values():
            box = where.box(stored.shape, stored.rule, rank)
            if box is not None:
                found[stored.name] = as_torch(
                    self.read_box(stored.layout, box, stored.dtype), stored.dtype, box.shape
                )
        return found

    def read_box(self, layout: Layout, box: Box, dtype: DType) -> Bytes:
        """The bytes of a box of a tensor with any layout over the logical tensors."""
        buffer = np.empty(box.size * dtype.itemsize, np.uint8)
        if box.size:
            target = Target("", dtype, layout, (box,))
            gather(self._folder, fill_box(self._source, target, box, buffer))
        return buffer

    def start_of(self, stored: Stored, chunk: Chunk) -> int | None:
        """The byte at which a chunk's elements begin; None where they are not in row-major order."""
        found = self.locate(stored, chunk)
        return found.start_bytes if found.piece is None else None

    def stream(self, file: str, start_bytes: int, length_bytes: int) -> Callable[[int, int], Bytes]:
        """What brings bytes of a part of a file, each time over those that it brought before."""
        view = self._folder.view
        self._folder.foretell(file, start_bytes, length_bytes)
        return lambda lo, hi: np.frombuffer(view(file, start_bytes + lo, hi - lo), np.uint8)

    def locate(self, stored: Stored, chunk: Chunk) -> Located:
        """Where a chunk's elements are in its file, in whatever order."""
        return self._source.locate(Copy(stored, chunk, Piece("", 0, 0)))

    def close(self) -> None:
        self._folder.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Checkpoint {self.manifest.path}: {self.format},"
            f" {self.family or 'unknown family'}, {len(self)} tensors>"
        )


class Tensor:
    """A logical tensor that reads what it is indexed with.

    `ck["model.norm.weight"][2:4]` reads two elements; `[...]` or `[:]` reads all.
    """

    def __init__(self, checkpoint: Checkpoint, logical: Logical) -> None:
        self._checkpoint = checkpoint
        self._logical = logical

    @property
    def name(self) -> str:
        return self._logical.name

    @property
    def shape(self) -> Shape:
        return self._logical.shape

    @property
    def dtype(self) -> torch.dtype:
        import torch

        found = getattr(torch, self._logical.dtype.torch)
        assert isinstance(found, torch.dtype)
        return found

    def __getitem__(self, index: Any) -> torch.Tensor:
        box, kept = box_of_index(index, self.shape, self.name)
        dtype = self._logical.dtype
        buffer = self._checkpoint.read_box(Layout.of(self.name, self.shape), box, dtype)
        return as_torch(buffer, dtype, kept)

    def tobytes(self) -> bytes:
        """The bytes of all elements, in row-major order."""
        whole = Layout.of(self.name, self.shape)
        return self._checkpoint.read_box(
            whole, Box.whole(self.shape), self._logical.dtype
        ).tobytes()

    def number(self) -> float:
        """The value of a tensor without axes, a counter say."""
        dtype = self._logical.dtype
        bits = np.frombuffer(self.tobytes(), bits_dtype(dtype))
        return float(as_float64(bits, dtype)[0])

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {list(self.shape)} {self._logical.dtype}>"


def box_of_index(index: Any, shape: Shape, name: str) -> tuple[Box, Shape]:
    """The box that an index selects, and the shape of the result (integers drop their axis)."""
    items = index if isinstance(index, tuple) else (index,)
    if items.count(...) > 1:
        raise UsageError(f"{name}: an index has at most one ellipsis")
    if ... in items:
        at = items.index(...)
        items = (*items[:at], *[slice(None)] * (len(shape) - len(items) + 1), *items[at + 1 :])
    if len(items) > len(shape):
        raise UsageError(f"{name} has {len(shape)} axes, the index has {len(items)}")
    offsets, sizes, kept = [], [], []
    for axis, n in enumerate(shape):
        item = items[axis] if axis < len(items) else slice(None)
        if isinstance(item, slice):
            lo, hi, step = item.indices(n)
            if step != 1:
                raise UsageError(f"{name}: axis {axis} is indexed with step {step}; only 1 is read")
            hi = max(lo, hi)
            kept.append(hi - lo)
        else:
            lo = int(item) + (n if item < 0 else 0)
            if not 0 <= lo < n:
                raise IndexError(f"{name}: index {item} is outside axis {axis} of {list(shape)}")
            hi = lo + 1
        offsets.append(lo)
        sizes.append(hi - lo)
    return Box(tuple(offsets), tuple(sizes)), tuple(kept)


def as_torch(buffer: Bytes, dtype: DType, shape: Shape) -> torch.Tensor:
    """The bytes of a tensor as a torch tensor, without a copy."""
    import torch

    kind = getattr(torch, dtype.torch)
    if not len(buffer):
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(buffer).view(kind).reshape(shape)

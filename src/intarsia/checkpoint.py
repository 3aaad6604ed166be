"""An opened checkpoint: logical tensors by name; only the bytes that are asked for are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.dtypes import DType
from intarsia.errors import CoverageError, UnknownTensorError
from intarsia.format.base import Located
from intarsia.format.registry import folder_of, format_named
from intarsia.kernel.summing import FileRuns, Sums
from intarsia.layout import Layout
from intarsia.mesh import Box, Mesh
from intarsia.opened.lazy_tensor import Tensor, as_torch
from intarsia.planning.manifest import Chunk, Manifest, Stored, Target
from intarsia.planning.proof import Proofs, Proven, Prover, prover_of
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.run.gather import gather
from intarsia.run.room import Bytes, Room
from intarsia.run.source import Source
from intarsia.store.base import Range
from intarsia.value import PLAIN, Value

if TYPE_CHECKING:
    import torch


class Checkpoint(Mapping[str, Tensor]):
    """A checkpoint as a mapping from logical names to tensors that are not yet read."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._folder = folder_of(manifest)
        self._folder.hold()
        self._source = Source(manifest, format_named(manifest.format), self._folder)

    @property
    def source(self) -> Source:
        """What brings bytes of what is proven."""
        return self._source

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
            logical = self.manifest.logical[name]
        except KeyError:
            raise UnknownTensorError(
                f"{name!r} is not in {self.manifest.path}", hint="keys() lists them"
            ) from None
        return Tensor(logical, lambda box: self.read_box(self.prover.tensor(name), box))

    def get_tensor(self, name: str) -> torch.Tensor:
        """All of a tensor, as `safetensors.safe_open` gives it."""
        return self[name][...]

    def get_slice(self, name: str) -> Tensor:
        """A tensor to be indexed, as `safetensors.safe_open` gives it: the same as `ck[name]`."""
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.logical)

    def __len__(self) -> int:
        return len(self.manifest.logical)

    def shard(self, mesh: str | Mapping[str, int] | Mesh, rank: int) -> dict[str, torch.Tensor]:
        """What one rank of a mesh holds, by stored name; only its own bytes are read."""
        where = Mesh.parse(mesh)
        found = {}
        self.prover.all()
        for stored in self.manifest.stored.values():
            box = where.box(stored.shape, stored.rule, rank)
            if box is not None:
                raw = self.read_box(self.prover.stored(stored), box)
                found[stored.name] = as_torch(raw, stored.dtype, box.shape)
        return found

    @property
    def prover(self) -> Prover:
        """What proves that something can be read."""
        return prover_of(self.manifest)

    def prove(self, name: str, layout: Layout, dtype: DType, value: Value = PLAIN) -> Proven:
        """The proof of a tensor with any layout over the logical tensors; `name` is for errors."""
        whole = (Box.whole(layout.shape),)
        return self.prover.prove(Target(name, dtype, layout, whole, value=value))

    def read_box(self, proven: Proven, box: Box, room: Room | None = None) -> Bytes:
        """The bytes of a box of what is proven; in a `room` they last until it is used again."""
        count_bytes = box.size * proven.target.dtype.itemsize
        buffer = np.empty(count_bytes, np.uint8) if room is None else room.take(count_bytes)
        self.read_boxes([(proven, box, buffer)])
        return buffer

    def read_boxes(self, wanted: Iterable[tuple[Proven, Box, Bytes]]) -> None:
        """Fill each buffer with the bytes of a box of what is proven; neighbours are read together."""
        fill = self._source.fill_box
        filled = (fill(proven, box, to) for proven, box, to in wanted if box.size)
        gather(self._folder, [x for each in filled for x in each])

    def start_of(self, stored: Stored, chunk: Chunk) -> int | None:
        """The byte at which a chunk's elements begin; None where they are not in row-major order."""
        if self._source.is_plain:
            return chunk.start_bytes
        found = self.locate(stored, chunk)
        return found.start_bytes if found.piece is None else None

    def locate_near(self, file: str, chunks: Iterable[tuple[Stored, Chunk]]) -> None:
        """Look at once at where the elements of chunks of a file are; `start_of` then knows most of them."""
        if not self._source.is_plain:
            self._source.locate_near(file, chunks)

    def stream(
        self, proven: Proven, file: str, start_bytes: int, length_bytes: int
    ) -> Callable[[int, int], Bytes]:
        """What brings bytes of a file that hold some of what is proven, each time over those before."""
        _check_holds(file, proven)
        view = self._folder.view
        self.prefetch(file, start_bytes, length_bytes)
        return lambda lo, hi: np.frombuffer(view(file, start_bytes + lo, hi - lo), np.uint8)

    def read_each(self, proofs: Sequence[Proven], file: str, ranges: Sequence[Range]) -> None:
        """Fill buffers from a file, in order, each with bytes that hold some of what is proven."""
        for proven in proofs:
            _check_holds(file, proven)
        self._folder.read_each(file, ranges)

    def sums(self, proofs: Sequence[Proven], file: str, runs: FileRuns) -> Sums | None:
        """Both sums of runs of a file, each of bytes that hold some of what is proven; None where they are to be read."""
        for proven in proofs:
            _check_holds(file, proven)
        return self._folder.sums(file, runs)

    def sums_of_whole(self, proofs: Proofs, tensors: Sequence[WholeTensor]) -> Sums | None:
        """Both sums of tensors that follow each other in a file as they are; None where they are to be read."""
        known, file = proofs.whole, tensors[0].file
        for x in tensors:
            if known.get(x.name) is not x or x.file != file or proofs.src is not self.manifest:
                raise CoverageError(f"`{x.name}` is not proven to be a run of {file}")
        _, _, _, starts, lengths, _ = zip(*tensors, strict=True)
        self.prefetch(file, starts[0], starts[-1] + lengths[-1] - starts[0])
        return self._folder.sums(file, FileRuns(starts, lengths, [0] * len(tensors)))

    def prefetch(self, file: str, start_bytes: int, length_bytes: int) -> None:
        """Have the store bring bytes of a file while others are worked on."""
        self._folder.prefetch_bytes(file, start_bytes, length_bytes)

    def locate(self, stored: Stored, chunk: Chunk) -> Located:
        """Where a chunk's elements are in its file, in whatever order."""
        return self._source.locate(stored, chunk)

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


def _check_holds(file: str, proven: Proven) -> None:
    for stored in proven.sources:
        for chunk in stored.chunks:
            if chunk.file == file:
                return
    raise CoverageError(f"{file} holds nothing of `{proven.target.name}`")

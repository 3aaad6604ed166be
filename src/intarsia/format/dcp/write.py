"""Writing DCP's files: every box and every object gets its place before any byte is written.

All formats whose bytes lie in `.distcp` files are laid out here; what they differ in is the
names, and what stands beside the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from intarsia.dtypes import DType
from intarsia.format.base import PAGE_BYTES, Arrangement, Held, Slot, WriteOptions
from intarsia.format.dcp.metadata import METADATA, Metadata, TensorRecord
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.format.dcp.optimizer_key import optimizer_key, with_optimizer_at
from intarsia.format.torch_file.torch_frame import Frame, frame
from intarsia.mesh import Box, Mesh, Rule, Shape
from intarsia.planning.manifest import Chunk, Entry, Target
from intarsia.state.names import ROOT

LINE_BYTES = 64
_OF_RANK = re.compile(r"__(\d+)_\d+\.distcp")


@dataclass
class Files:
    """The data files of a checkpoint, one a rank, as far as they are laid out."""

    ranks: int
    folder: str = ""
    fixed: list[tuple[str, int, bytes]] = field(default_factory=list)
    _ends: list[int] = field(init=False)
    _names: list[str] = field(init=False)
    _frames: dict[tuple[str, Shape], tuple[Frame, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._ends = [0] * self.ranks
        self._names = [*map(file_of, range(self.ranks))]

    def place(
        self, dtype: DType, box: Box, holding: Sequence[int], stored: Box | None = None
    ) -> tuple[Slot, Chunk]:
        """Give a box to the rank that has the least to write of those that hold it.

        `stored` is the box in the tensor on disk, where that is another than the target.
        """
        stored = stored or box
        rank = min(holding, key=lambda r: (self._ends[r], r)) if holding[1:] else holding[0]
        known = self._frames.get((dtype.torch, stored.shape))
        if known is None:
            wrap = frame(dtype, stored.shape)
            known = self._frames[dtype.torch, stored.shape] = wrap, alignment_bytes(wrap)
        wrap, to = known
        file, end = self._names[rank], self._ends[rank]
        at = end + -(end + wrap.start_bytes) % to
        self._ends[rank] = at + wrap.length_bytes
        slot = Slot(box, self.folder + file, at + wrap.start_bytes, wrap, at - end)
        return slot, Chunk(stored, file, at, wrap.length_bytes)

    def append(self, name: str, data: bytes) -> Entry:
        """Put an object behind all that the first rank writes."""
        file, at = file_of(0), self._ends[0]
        self._ends[0] += len(data)
        self.fixed.append((self.folder + file, at, data))
        return Entry(name, file, at, len(data))

    @property
    def sizes(self) -> dict[str, int]:
        """The files that hold anything, and how long they are."""
        return {self.folder + file_of(rank): end for rank, end in enumerate(self._ends) if end}


def arrange(targets: Sequence[Target], options: WriteOptions) -> Arrangement:
    """The files of a checkpoint whose tensors are cut as the mesh asks."""
    held, key = cut_by(options.mesh, targets), optimizer_key(options.source)
    return lay_out(held, options.entries, options.mesh.size, key)


def cut_by(mesh: Mesh, targets: Iterable[Target]) -> Iterator[Held]:
    """Each target, with the ranks of a mesh that hold its boxes."""
    return ((t.name, t.dtype, t.shape, holders(mesh, t.shape, t.rule)) for t in targets)


def lay_out(
    held: Iterable[Held], entries: Mapping[str, bytes], ranks: int, key: str = ROOT
) -> Arrangement:
    """The files of a checkpoint, from the ranks that hold each box of each tensor; `key` is the optimizer's."""
    files = Files(ranks)
    slots, tensors = place_all(files, held)
    objects = {name: files.append(name, data) for name, data in sorted(entries.items())}
    paths = {name: (name,) for name in (*tensors, *objects)}
    metadata = with_optimizer_at(key, Metadata(tensors, objects, paths, {}))
    return Arrangement(files.sizes, slots, files.fixed, {METADATA: write_metadata(metadata)})


def place_all(
    files: Files, held: Iterable[Held]
) -> tuple[dict[str, tuple[Slot, ...]], dict[str, TensorRecord]]:
    """A place for every box of every tensor, and what the metadata say of it."""
    slots: dict[str, tuple[Slot, ...]] = {}
    tensors: dict[str, TensorRecord] = {}
    for name, dtype, shape, boxes in held:
        placed = [files.place(dtype, box, holding) for box, holding in boxes.items()]
        slots[name] = tuple(slot for slot, _ in placed)
        tensors[name] = TensorRecord(name, dtype, shape, tuple(record for _, record in placed))
    return slots, tensors


def file_of(rank: int) -> str:
    """The file that a rank writes."""
    return f"__{rank}_0.distcp"


def rank_of(file: str) -> int | None:
    """The rank that wrote a file.

    >>> rank_of("iter_0000005/__3_0.distcp"), rank_of("common.pt")
    (3, None)
    """
    found = _OF_RANK.fullmatch(file.rpartition("/")[2])
    return int(found[1]) if found else None


def alignment_bytes(wrap: Frame) -> int:
    """What the elements of an archive are aligned to: a page where they are many, a line where few.

    Readers go by the offsets of the metadata, so the gaps before archives mean nothing to them.
    """
    return PAGE_BYTES if wrap.length_bytes >= 16 * PAGE_BYTES else LINE_BYTES


def holders(mesh: Mesh, shape: Shape, rule: Rule) -> Mapping[Box, list[int]]:
    """The ranks that hold each box of a tensor, worked out for the first layer and expert that the same ranks hold."""
    stage, expert = mesh.stage(rule), rule.expert
    if expert is not None:
        per_rank = -(-expert[1] // mesh.ep)
        expert = expert[0] // per_rank * per_rank, expert[1]
    layer = None if stage is None else (stage, mesh.pp)
    return _holders(mesh, shape, Rule(rule.tp, rule.ep, expert, layer, rule.grid))


@lru_cache(maxsize=1 << 14)
def _holders(mesh: Mesh, shape: Shape, rule: Rule) -> Mapping[Box, list[int]]:
    return mesh.holders(shape, rule)

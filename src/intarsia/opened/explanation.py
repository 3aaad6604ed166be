"""Where the elements of a tensor lie: stored tensors, files, byte ranges, ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from difflib import get_close_matches
from typing import Any

from intarsia.document import Document, fields_of
from intarsia.errors import UsageError, visible
from intarsia.format.registry import read_manifest
from intarsia.frozen import frozen, frozen_open
from intarsia.layout import describe_piece, draw
from intarsia.layout.piece import Piece
from intarsia.mesh import Mesh, Shape
from intarsia.options import ConfigLike, MeshLike, PathLike, SectionLike
from intarsia.planning.manifest import Chunk, Manifest, Stored
from intarsia.planning.proof import prover_of

_SHOWN, _LISTED = 3, 1000
"""How many pieces of a chunk are described in words, and how many are in a document."""


@frozen
class StoredAs(Document):
    """A stored tensor that holds elements of the one that was asked for."""

    name: str
    dtype: str
    shape: Shape


@frozen
class OnDisk(Document):
    """The bytes of one chunk, and the elements of the tensor among them; `holds` says them in words."""

    stored: str
    file: str
    start_bytes: int
    end_bytes: int
    chunk: str
    elements: int
    holds: str
    pieces: tuple[Piece, ...]

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return len(self.pieces)

    def as_json(self) -> dict[str, Any]:
        return fields_of(self, but=("pieces",)) | {
            "count": self.count,
            "pieces": [
                {
                    "tensor": p.tensor,
                    "at": p.at,
                    "to": p.to,
                    "loops": [[loop.n, loop.at, loop.to] for loop in p.loops],
                }
                for p in self.pieces[:_LISTED]
            ],
        }


@frozen
class OnRank(Document):
    """The box of a stored tensor that a rank of a mesh holds."""

    rank: int
    place: str
    stored: str
    box: str


@frozen_open
class Explanation(Document):
    """Where the elements of a tensor lie; `ranks` are those of `mesh`, where one was given."""

    tensor: str
    format: str
    family: str | None
    stored: tuple[StoredAs, ...]
    pieces: tuple[OnDisk, ...]
    mesh: Mesh
    ranks: tuple[OnRank, ...]
    manifest: Manifest = field(repr=False, compare=False)
    held: tuple[Stored, ...] = field(repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        return fields_of(self, but=("manifest", "held")) | {"mesh": str(self.mesh)}

    def drawing(self, width: int = 72) -> str:
        """A picture of each stored tensor, with what it holds; at most `width` characters wide."""
        return "\n".join(self._drawn(width))

    def _drawn(self, width: int) -> Iterator[str]:
        logical = self.manifest.logical
        if self.tensor in logical:
            x = logical[self.tensor]
            yield f"{visible(self.tensor)}: {x.dtype} {list(x.shape)}, {x.size:,} elements"
        shapes = {name: x.shape for name, x in logical.items()}
        for s in self.held:
            part = f", its part {s.name}" if s.key not in ("", s.name) else ""
            yield f"\nstored as {visible(s.on_disk + part)}, {s.dtype} {list(s.shape)}"
            names = {name: visible(name) for name in s.layout.tensors}
            yield draw(s.layout, shapes, names=names, width=width)

    def __str__(self) -> str:
        return self.drawing()


def explain(
    path: PathLike,
    tensor: str,
    mesh: MeshLike = None,
    config: ConfigLike = None,
    section: SectionLike = None,
) -> Explanation:
    """Where the elements of a tensor lie: stored tensors, files, byte ranges and, on a `mesh`, ranks.

    `tensor` is its logical name or its name on disk; one that cannot be read is refused.
    """
    if not isinstance(tensor, str):
        raise UsageError(
            f"a tensor's name is text, found {tensor!r} of type {type(tensor).__name__}",
            hint="intarsia inspect --tensors lists them",
        )
    where = Mesh.parse(mesh) if mesh else None
    manifest = read_manifest(path, config, section=section)
    held = _held(manifest, tensor)
    for s in held:
        prover_of(manifest).stored(s)
    return Explanation(
        tensor=tensor,
        format=manifest.format,
        family=manifest.family,
        stored=tuple(StoredAs(s.on_disk, s.dtype.name, s.shape) for s in held),
        pieces=tuple(row for s in held for row in _on_disk(manifest, s, tensor)),
        mesh=where or Mesh(),
        ranks=tuple(_on_ranks(held, where)) if where is not None else (),
        manifest=manifest,
        held=held,
    )


def _held(manifest: Manifest, tensor: str) -> tuple[Stored, ...]:
    """The stored tensors that hold a tensor."""
    held = tuple(manifest.sources.get(tensor, ()))
    held = held or tuple(s for s in manifest.stored.values() if tensor in (s.key, s.name))
    if held:
        return held
    near = get_close_matches(tensor, [*manifest.logical, *manifest.stored], 3, 0.4)
    listed = f"did you mean {', '.join(dict.fromkeys(near))}?"
    hint = listed if near else "intarsia inspect --tensors lists them"
    raise UsageError(f"{tensor!r} is not in {manifest.path}", hint=hint)


def _on_ranks(held: tuple[Stored, ...], mesh: Mesh) -> Iterator[OnRank]:
    for s in held:
        for rank in range(mesh.size):
            box = mesh.box(s.shape, s.rule, rank)
            if box is not None and box.size:
                yield OnRank(rank, str(mesh.place(rank)), s.on_disk, str(box))


def _on_disk(manifest: Manifest, s: Stored, tensor: str) -> Iterator[OnDisk]:
    """Each chunk of a stored tensor that holds elements of `tensor`."""
    own = tensor in (s.key, s.name) and tensor not in manifest.logical
    for chunk in s.chunks:
        layout = s.layout.box(chunk.box.offsets, chunk.box.shape)
        pieces = tuple(p for p in layout.pieces if own or p.tensor == tensor)
        if pieces or not s.layout.size:
            yield _chunk(manifest, s, chunk, pieces)


def _chunk(manifest: Manifest, s: Stored, chunk: Chunk, pieces: tuple[Piece, ...]) -> OnDisk:
    shapes = manifest.logical
    holds = "; ".join(
        describe_piece(p, shapes[p.tensor].shape if p.tensor in shapes else None)
        for p in pieces[:_SHOWN]
    )
    return OnDisk(
        stored=s.on_disk,
        file=chunk.file,
        start_bytes=chunk.start_bytes,
        end_bytes=chunk.start_bytes + chunk.length_bytes,
        chunk=str(chunk.box),
        elements=sum(p.size for p in pieces),
        holds=holds + ("; …" if len(pieces) > _SHOWN else ""),
        pieces=pieces,
    )

"""Where the tensors of a checkpoint lie, as data for a page: files, byte ranges, boxes, drawings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from intarsia.errors import LayoutError, visible
from intarsia.format.registry import format_named
from intarsia.layout import Layout, draw
from intarsia.planning.manifest import Chunk, Manifest, Stored

CHUNKS = 100_000
"""How many chunks a page lists; where there are more, each stored tensor shows its first ones."""

DRAWINGS = 4_000
"""How many stored tensors that fuse, pad or permute have their picture on the page."""


Text = list[int]
"""The number of its words, and the numbers between them."""


@dataclass
class Texts:
    """Texts cut at their numbers: the words, which thousands of names and drawings share, are kept once.

    >>> texts = Texts()
    >>> texts.add("layers.3.w"), texts.add("layers.11.w"), list(texts.words)
    ([0, 3], [0, 11], [('layers.', '.w')])
    """

    words: dict[tuple[str, ...], int] = field(default_factory=dict)

    def add(self, text: str) -> Text:
        parts = _NUMBER.split(text)
        found = self.words.setdefault(tuple(parts[::2]), len(self.words))
        return [found, *map(int, parts[1::2])]


_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,14})(?![0-9])", re.ASCII)
"""A number that its value gives back: no leading zero, exact in a script."""


def storage_map(manifest: Manifest, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Files, stored tensors and chunks; `numbers` gives each logical tensor's number.

    Texts that differ in their numbers alone are kept once (`Texts`).  A chunk is `[file, first byte, bytes]`, then its box where it is not the whole, then its elements
    of each tensor where the stored one fuses several.  A stored tensor is `[name, dtype, shape, chunks, how many,
    tensors, drawing]`, its name 0 where that is the tensor's own, its drawing 0 where it holds one tensor as it is.
    A file is `[name, bytes, rank that wrote it]`, the last null where its name holds none.
    """
    files: dict[str, int] = {name: k for k, name in enumerate(manifest.files)}
    total = sum(len(s.chunks) for s in manifest.stored.values())
    most = total if total <= CHUNKS else max(1, CHUNKS // len(manifest.stored))
    shapes = {name: x.shape for name, x in manifest.logical.items()}
    shown = {name: visible(name) for name in shapes if not name.isprintable()}
    left, stored, texts = DRAWINGS, [], Texts()
    for s in manifest.stored.values():
        tensors = s.layout.tensors
        own = len(tensors) == 1 and s.on_disk == tensors[0]
        drawing: Text | str | int = 0
        if not tensors or s.layout != Layout.of(tensors[0], shapes.get(tensors[0], ())):
            left -= 1
            drawing = texts.add(draw(s.layout, shapes, names=shown, width=92)) if left >= 0 else ""
        name = 0 if own else texts.add(_on_disk(s))
        chunks = [_chunk(s, c, files, numbers) for c in s.chunks[:most]]
        held = [numbers[tensor] for tensor in tensors]
        stored.append([name, str(s.dtype), list(s.shape), chunks, len(s.chunks), held, drawing])
    rank_of = format_named(manifest.format).rank_of
    return {
        "path": visible(manifest.path),
        "files": [[visible(file), manifest.files.get(file, 0), rank_of(file)] for file in files],
        "stored": stored,
        "texts": list(texts.words),
    }


def _on_disk(s: Stored) -> str:
    """The name of a stored tensor on disk, and which part of it this is where it stacks layers."""
    return visible(s.name if s.key in ("", s.name) else f"{s.key}, its part {s.name}")


def _chunk(s: Stored, chunk: Chunk, files: dict[str, int], numbers: Mapping[str, int]) -> list[Any]:
    file = files.setdefault(chunk.file, len(files))
    found: list[Any] = [file, chunk.start_bytes, chunk.length_bytes]
    if chunk.box.shape == s.shape:
        return found
    found.append([list(chunk.box.offsets), list(chunk.box.shape)])
    if len(s.layout.tensors) > 1:
        try:
            pieces = s.layout.box(chunk.box.offsets, chunk.box.shape).pieces
        except LayoutError:
            return found  # a box that leaves its tensor: a fault of its own
        held: dict[int, int] = {}
        for p in pieces:
            held[numbers[p.tensor]] = held.get(numbers[p.tensor], 0) + p.size
        found.append([n for pair in held.items() for n in pair])
    return found

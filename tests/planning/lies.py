"""Sources that lie: sound checkpoints in every format, their headers rewritten."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import intarsia
from intarsia.format.dcp.metadata import METADATA, TensorRecord, read_metadata
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.format.folder.side_files import DIGESTS
from intarsia.planning.manifest import Chunk
from tests.checkpoints import llama_config, model, write_hf

CONFIG = llama_config(num_hidden_layers=2, vocab_size=48, intermediate_size=32)
MESHES = {"dcp": "tp=2", "torch_dist": "tp=2", "fsdp_dtensor": "fsdp=2"}
NAME = "model.embed_tokens.weight"
"""The tensor that is lied about."""

Chunks = tuple[Chunk, ...]


@dataclass(frozen=True)
class Lie:
    """What is done to the chunks of a tensor that lies in two halves, and what is said of it."""

    title: str
    tell: Callable[[Chunks], Chunks]
    error: type[intarsia.IntarsiaError]
    text: str


def moved(chunk: Chunk, rows: int) -> Chunk:
    return replace(chunk, box=chunk.box.moved((rows, *[0] * (len(chunk.box.shape) - 1))))


def at(chunk: Chunk, other: Chunk, further: int = 0) -> Chunk:
    """A chunk whose bytes are said to be another's."""
    start = other.start_bytes + further
    return replace(chunk, file=other.file, start_bytes=start, length_bytes=other.length_bytes)


COVERAGE, FORMAT = intarsia.CoverageError, intarsia.FormatError
OVERLAP = r"parts \[0:24, 0:20\] and \[23:47, 0:20\] overlap"
HOLE = r"480 of 960 elements are in none of 1 parts; first missing \[{}, 0\]"
LIES = (
    Lie("overlap with the right volume", lambda c: (c[0], moved(c[1], -1)), COVERAGE, OVERLAP),
    Lie("the same in another order", lambda c: (moved(c[1], -1), c[0]), COVERAGE, OVERLAP),
    Lie("no second half", lambda c: c[:1], COVERAGE, HOLE.format(24)),
    Lie("no first half", lambda c: c[1:], COVERAGE, HOLE.format(0)),
    Lie("beyond the end", lambda c: (c[0], moved(c[1], 1)), FORMAT, "is not within"),
    Lie("one chunk twice", lambda c: (c[0], c[0]), FORMAT, r"stored twice at offset \(0, 0\)"),
    Lie("the bytes of another", lambda c: (c[0], at(c[1], c[0])), FORMAT, "occupy the same bytes"),
    Lie("bytes that overlap", lambda c: (c[0], at(c[1], c[0], 8)), FORMAT, "occupy the same bytes"),
    Lie(
        "too few bytes",
        lambda c: (c[0], replace(c[1], length_bytes=64)),
        COVERAGE,
        r"chunk \[24:48, 0:20\] of `.*` needs 1,920 bytes, 64 are stored",
    ),
)


def sound(folder: Path) -> dict[str, Path]:
    """One small model of float32 in every format, without digests."""
    made = {"hf": write_hf(folder / "hf", model(CONFIG, torch.float32), CONFIG)}
    for to, mesh in MESHES.items():
        made[to] = folder / to
        intarsia.convert(made["hf"], made[to], to=to, mesh=mesh, digests=False)
        assert not list(made[to].rglob(DIGESTS))
    return made


def rewrite(source: Path, folder: Path, tell: Callable[[dict[str, TensorRecord]], None]) -> Path:
    """A copy of a checkpoint, its metadata rewritten."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (file,) = folder.rglob(METADATA)
    metadata = read_metadata(file.read_bytes(), str(file))
    tell(metadata.tensors)
    file.write_bytes(write_metadata(metadata))
    return folder


def lying(source: Path, folder: Path, lie: Lie) -> Path:
    """A copy whose metadata lie about the one tensor."""

    def tell(tensors: dict[str, TensorRecord]) -> None:
        (name,) = (n for n in tensors if "embed" in n)
        held = tensors[name]
        assert [c.box.offsets for c in held.chunks] == [(0, 0), (24, 0)]
        tensors[name] = replace(held, chunks=lie.tell(held.chunks))

    return rewrite(source, folder, tell)

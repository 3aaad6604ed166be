"""Edits of DCP's metadata by its records: shapes, offsets, sizes, files and names that lie."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from intarsia.dtypes import BY_NAME
from intarsia.errors import IntarsiaError
from intarsia.format.dcp.metadata import Metadata, TensorRecord, read_metadata
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.planning.manifest import Chunk
from tests.fuzz.values import NUMBERS, TEXTS


def metadata_edited(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes | None:
    """Metadata with one record changed and written anew; None where it cannot be read."""
    found = _read(data)
    if found is None or not found.tensors:
        return None
    tensors, objects = dict(found.tensors), dict(found.objects)
    if objects and chance.random() < 0.2:
        name = chance.choice(list(objects))
        entry = objects[name]
        changed = chance.choice(("start_bytes", "length_bytes", "file"))
        value = (
            chance.choice(TEXTS) if changed == "file" else _number(getattr(entry, changed), chance)
        )
        objects[name] = replace(entry, **{changed: value})
    else:
        name = chance.choice(list(tensors))
        record = tensors.pop(name)
        record = _tensor(record, list(tensors), chance)
        tensors[record.name] = record
    paths = {name: (name,) for name in (*tensors, *objects)}
    return write_metadata(Metadata(tensors, objects, paths, {}))


@lru_cache(maxsize=512)
def _read(data: bytes) -> Metadata | None:
    try:
        return read_metadata(data, "here")
    except IntarsiaError:
        return None


def _tensor(record: TensorRecord, names: list[str], chance: random.Random) -> TensorRecord:
    kind = chance.randrange(6)
    if kind == 0:
        return replace(record, name=chance.choice((*TEXTS, *names)))
    if kind == 1:
        return replace(record, shape=_axes(record.shape, chance))
    if kind == 2:
        return replace(record, dtype=chance.choice(list(BY_NAME.values())))
    chunks = list(record.chunks)
    if kind == 3 and chunks:
        del chunks[chance.randrange(len(chunks))]
    elif kind == 4 and chunks:
        chunks.append(_chunk(chance.choice(chunks), chance))
    elif chunks:
        at = chance.randrange(len(chunks))
        chunks[at] = _chunk(chunks[at], chance)
    return replace(record, chunks=tuple(chunks))


def _chunk(chunk: Chunk, chance: random.Random) -> Chunk:
    changed = chance.choice(("offsets", "shape", "file", "start_bytes", "length_bytes"))
    if changed in ("offsets", "shape"):
        return replace(
            chunk, box=replace(chunk.box, **{changed: _axes(getattr(chunk.box, changed), chance)})
        )
    if changed == "file":
        return replace(chunk, file=chance.choice(TEXTS))
    return replace(chunk, **{changed: _number(getattr(chunk, changed), chance)})


def _axes(axes: tuple[int, ...], chance: random.Random) -> tuple[int, ...]:
    out = list(axes)
    at = chance.randrange(len(out) + 1)
    if at == len(out) or chance.random() < 0.2:
        out.insert(at, chance.choice(NUMBERS))
    else:
        out[at] = _number(out[at], chance)
    return tuple(out)


def _number(old: int, chance: random.Random) -> int:
    return chance.choice((*NUMBERS, old + 1, old - 1, old * 2, old // 2, old + 64))

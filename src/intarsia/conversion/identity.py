"""What makes two conversions the same one, so that the second may continue the first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import PurePath

import numpy as np

from intarsia.conversion.job import Job
from intarsia.format.base import Arrangement
from intarsia.format.registry import root_of
from intarsia.planning.chunks import boxes_of, places_of
from intarsia.planning.manifest import Manifest, Target
from intarsia.store.address import named


def job_facts(job: Job, arrangement: Arrangement) -> dict[str, str]:
    """Everything that the bytes of the destination follow from, each under a name that people know."""
    from intarsia import __version__

    request, root = job.request, root_of(job.src)
    return {
        "Intarsia": __version__,
        "--to": request.to,
        "--mesh": str(request.mesh),
        "--dialect": request.dialect or "not given",
        "--megatron-spec": request.spec,
        "--megatron-lr": str(request.rates or "not given"),
        "--dtype": str(request.dtype or "not given"),
        "--optimizer": request.optimizer,
        "--max-shard-size": str(job.max_shard_bytes),
        "model configuration": _digest([json.dumps(job.config, sort_keys=True, default=str)]),
        **{
            f"source file {_relative(path, root)}": str(stamp)
            for path, stamp in job.stamps.files.items()
        },
        "tensors of the source": _digest(_tensors(job.src)),
        "tensors of the destination": _digest(_layouts(job.wanted.targets)),
        "files of the destination": _digest(_files(arrangement)),
    }


def _relative(path: str, root: PurePath) -> str:
    return str(named(path).relative_to(root)) if named(path).is_relative_to(root) else path


def _tensors(src: Manifest) -> Iterator[bytes]:
    held = src.stored.values()
    yield from _texts([s.key for s in held])
    yield from _texts([s.name for s in held])
    yield from _recurring((s.dtype.name, s.layout.shape, str(s.value)) for s in held)
    boxes = [boxes_of(s.chunks) for s in held]
    # Tensors that are cut alike may share their boxes, of which there may be thousands.
    cuts = {id(x): tuple([(box.offsets, box.shape) for box in x]) for x in boxes}
    yield from _recurring(cuts[id(x)] for x in boxes)
    names, *columns = places_of([s.chunks for s in held])
    yield from _texts(names)
    yield from (column.tobytes() for column in columns)


def _layouts(targets: Sequence[Target]) -> Iterator[bytes]:
    kinds = ((t.dtype.name, t.layout.shape, str(t.value), len(t.layout.pieces)) for t in targets)
    pieces = [p for t in targets for p in t.layout.pieces]
    yield from _texts([t.name for t in targets])
    yield from _recurring(kinds)
    yield from _texts([p.tensor for p in pieces])
    yield from (_numbers([p.at for p in pieces]), _numbers([p.to for p in pieces]))
    yield from _recurring(tuple([(x.n, x.at, x.to) for x in p.loops]) for p in pieces)


def _numbers(column: Sequence[int]) -> bytes:
    return np.array(column, np.int64).tobytes()


def _texts(column: Sequence[str]) -> Iterator[bytes]:
    """How long texts are, and all of them in one."""
    yield _numbers([*map(len, column)])
    yield "".join(column).encode("utf-8", "surrogatepass")


def _recurring(column: Iterable[Hashable]) -> Iterator[bytes]:
    """Values, many of them equal: the number of each, and what the numbers stand for."""
    known: dict[Hashable, int] = {}
    yield _numbers([known.setdefault(value, len(known)) for value in column])
    yield repr([*known]).encode()


def _files(arrangement: Arrangement) -> Iterable[str | bytes]:
    """Sizes, headers and closing files, which between them name the place of every tensor."""
    for file, size in arrangement.files.items():
        yield f"{file} {size}"
    for file, at, data in arrangement.fixed:
        yield f"{file} {at}"
        yield data
    for file, data in arrangement.closing.items():
        yield file
        yield data


def _digest(parts: Iterable[str | bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()[:16]

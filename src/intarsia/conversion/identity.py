"""What makes two conversions the same one, so that the second may continue the first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from intarsia.conversion.job import Job
from intarsia.format.base import Arrangement
from intarsia.format.registry import root_of
from intarsia.planning.chunks import Chunks
from intarsia.planning.manifest import Manifest, Target
from intarsia.store.address import named


def facts_of(job: Job, arrangement: Arrangement) -> dict[str, str]:
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
        "model configuration": _digest([_sorted(job.config)]),
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


def _tensors(src: Manifest) -> Iterable[str | bytes]:
    said: dict[int, tuple[object, int]] = {}
    for s in src.stored.values():
        yield f"{s.key} {s.name} {s.dtype} {s.shape} {s.value}"
        chunks = s.chunks
        if not isinstance(chunks, Chunks):
            for c in chunks:
                yield f"{c.file} {c.start_bytes} {c.length_bytes} {c.box.offsets} {c.box.shape}"
            continue
        boxes, (names, *columns) = chunks.boxes, chunks.places
        for each in (boxes, names):
            # Said once, and kept, so that nothing else comes to have its identity.
            if id(each) not in said:
                said[id(each)] = each, len(said)
                yield repr(each)
        yield f"{said[id(boxes)][1]} {said[id(names)][1]}"
        for column in columns:
            yield column[chunks.first : chunks.first + len(boxes)].tobytes()


def _layouts(targets: Iterable[Target]) -> Iterable[str]:
    for t in targets:
        yield f"{t.name} {t.dtype} {t.shape} {t.value}"
        for p in t.layout.pieces:
            yield f"{p.tensor} {p.at} {p.to} {[(x.n, x.at, x.to) for x in p.loops]}"


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


def _sorted(config: Mapping[str, Any] | None) -> str:
    return json.dumps(config, sort_keys=True, default=str)


def _digest(parts: Iterable[str | bytes]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()

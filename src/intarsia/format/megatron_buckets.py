"""Optimizer state that Megatron stores in buckets (`dp_reshardable`, its default).

Each model-parallel rank lays its parameters out in a flat buffer, the last one first, each
beginning at a multiple of 64 elements, and cuts the buffer into buckets.  A bucket is stored as
one flat tensor.  Nothing says which parameter is where; but every parameter and every gap is a
chunk of its own, so an order of the parameters is right only where each of them begins and ends
with a chunk and the last one ends the last bucket.  We try the orders that Megatron's modules
have, and take the one that fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from intarsia.errors import FormatError
from intarsia.family import Param
from intarsia.format.dcp_metadata import TensorRecord
from intarsia.format.megatron_common import whole
from intarsia.format.megatron_keys import Key
from intarsia.format.megatron_optimizer import kind_of, state_row
from intarsia.format.megatron_order import SPECS, Parameter, parameters_of
from intarsia.layout import shard
from intarsia.mesh import Box, Rule
from intarsia.planning.manifest import Chunk, Stored

_BUCKET = re.compile(
    r"^(?:chained_(?P<link>\d+)\.)?optimizer\.distributed\.dp_group_idx_(?P<group>\d+)"
    r"\.gbuf_idx_(?P<buffer>\d+)\.dtype_(?P<types>\(.*\))\.bucket_idx_(?P<bucket>\d+)"
    r"\.(?P<kind>\w+)$"
)
_ALIGNED = 64


class Place(NamedTuple):
    """Where a buffer belongs: which optimizer of a chain, which rank, which buffer of that rank."""

    link: int
    group: int
    buffer: int


@dataclass(frozen=True)
class Bucket:
    """The flat tensors of one bucket by kind of state."""

    records: dict[str, TensorRecord] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return next(iter(self.records.values())).shape[0]

    @cached_property
    def cuts(self) -> set[int]:
        """Every place where a chunk begins or ends."""
        chunks = next(iter(self.records.values())).chunks
        return {c.offsets[0] for c in chunks} | {c.offsets[0] + c.shape[0] for c in chunks}


def is_bucket(name: str) -> bool:
    """Whether a stored tensor is a bucket of optimizer state."""
    return _BUCKET.match(name) is not None


def read_buckets(
    records: Sequence[TensorRecord], params: Sequence[Param], args: Mapping[str, Any], where: str
) -> list[Stored]:
    """The state of every parameter, as parts of the buckets that hold it.

    `params` are the model's parameters, layer by layer and expert by expert.
    """
    buffers = _buffers(records, where)
    dense = [p for p in params if not p.rule.is_expert]
    experts = [p for p in params if p.rule.is_expert]
    links = sorted({place.link for place in buffers})
    expected = 2 if experts else 1
    if len(links) != expected:
        raise FormatError(
            f"{where} has the state of {len(links)} optimizers, {expected} are expected",
            hint="save with --dist-ckpt-optim-fully-reshardable, or convert with --optimizer drop",
        )
    found = list(_read(buffers, links[0], dense, args, "tensor_model_parallel_size", where))
    if experts:
        found += _read(buffers, links[1], experts, args, "expert_tensor_parallel_size", where)
    return found


def _buffers(records: Sequence[TensorRecord], where: str) -> dict[Place, list[Bucket]]:
    buffers: dict[Place, dict[int, Bucket]] = {}
    types = set()
    for record in records:
        name = _BUCKET.match(record.name)
        assert name is not None
        types.add(name["types"])
        place = Place(int(name["link"] or 0), int(name["group"]), int(name["buffer"]))
        bucket = buffers.setdefault(place, {}).setdefault(int(name["bucket"]), Bucket())
        bucket.records[kind_of(name["kind"])] = record
    if len(types) > 1:
        raise FormatError(
            f"{where} has buckets of several element types ({', '.join(sorted(types))}), so that"
            " nothing says which parameter is in which",
            hint="save with --dist-ckpt-optim-fully-reshardable, or convert with --optimizer drop",
        )
    return {place: [held[i] for i in sorted(held)] for place, held in buffers.items()}


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks that an optimizer's buffers belong to: tensor parallel fastest, pipeline slowest."""

    tp: int
    ep: int
    pp: int
    chunks: int

    def groups(self, stage: int) -> Iterator[tuple[int, int, int]]:
        """The group, and its place in tensor and expert parallelism, of every rank of a stage."""
        for e in range(self.ep):
            for t in range(self.tp):
                yield (stage * self.ep + e) * self.tp + t, t, e


def _grids(
    buffers: Mapping[Place, list[Bucket]], link: int, args: Mapping[str, Any], tp_name: str, experts: bool
) -> Iterator[Grid]:
    """The grids that have as many ranks as there are groups; what the arguments say comes first."""
    groups = len({place.group for place in buffers if place.link == link})
    chunks = len({place.buffer for place in buffers if place.link == link})
    said = {
        "tp": whole(args, tp_name),
        "ep": whole(args, "expert_model_parallel_size") if experts else 1,
        "pp": whole(args, "pipeline_model_parallel_size"),
    }
    divisors = [n for n in range(1, groups + 1) if groups % n == 0]
    found = [
        Grid(tp, ep, groups // (tp * ep), chunks)
        for tp in divisors
        for ep in (divisors if experts else [1])
        if groups % (tp * ep) == 0
    ]

    def contradicts(grid: Grid) -> int:
        return sum(n is not None and getattr(grid, axis) != n for axis, n in said.items())

    return iter(sorted(found, key=contradicts))


def _read(
    buffers: Mapping[Place, list[Bucket]],
    link: int,
    params: Sequence[Param],
    args: Mapping[str, Any],
    tp_name: str,
    where: str,
) -> Iterator[Stored]:
    experts = params[0].rule.is_expert
    for grid in _grids(buffers, link, args, tp_name, experts):
        for spec in SPECS:
            placed = _fit_all(buffers, link, parameters_of(params, spec), grid)
            if placed is not None:
                for buckets, rank, entries in placed:
                    yield from _stored(buckets, rank, entries)
                return
    groups = len({place.group for place in buffers if place.link == link})
    raise FormatError(
        f"{where}: no order of the {len(params):,} parameters fits the buckets of"
        f" {groups} ranks (optimizer {link})",
        hint="save with --dist-ckpt-optim-fully-reshardable, or convert with --optimizer drop",
    )


class Entry(NamedTuple):
    """A parameter in a bucket; it has no row where another rank's copy is the one that is read."""

    row: Param | None
    bucket: int
    start: int
    size: int


_Placed = tuple[list[Bucket], str, list[Entry]]


def _fit_all(
    buffers: Mapping[Place, list[Bucket]], link: int, params: list[Parameter], grid: Grid
) -> list[_Placed] | None:
    """The parameters of every rank in its buckets, stage by stage; None where one does not fit."""
    layers = 1 + max((p.rule.layer[0] for p in params if p.rule.layer), default=-1)
    out: list[_Placed] = []
    start = 0
    for stage in range(grid.pp * grid.chunks):
        virtual, rank = divmod(stage, grid.pp)
        for end in range(layers, start - 1, -1):
            held = _of_stage(params, start, end, stage, stage == grid.pp * grid.chunks - 1)
            fitted = _fit_stage(buffers, link, held, grid, rank, virtual)
            if fitted is not None:
                out += fitted
                start = end
                break
        else:
            return None
    return out if start == layers else None


def _of_stage(params: list[Parameter], start: int, end: int, stage: int, last: bool) -> list[Parameter]:
    def belongs(p: Parameter) -> bool:
        key = Key.parse(p.name)
        if key.layer is not None and "mtp" not in key.head:
            return start <= key.layer < end
        return stage == 0 if "embedding" in p.name else last

    held = [p for p in params if belongs(p)]
    if last and stage and not any("output_layer" in p.name for p in held):
        # A head that is tied to the embedding has its own copy on the last stage.
        tied = [p for p in params if p.name.endswith("word_embeddings.weight")]
        held += [replace(p, name="output_layer.weight", copied=True) for p in tied]
    return held


def _fit_stage(
    buffers: Mapping[Place, list[Bucket]],
    link: int,
    params: list[Parameter],
    grid: Grid,
    stage: int,
    virtual: int,
) -> list[_Placed] | None:
    out: list[_Placed] = []
    for group, t, e in grid.groups(stage):
        buckets = buffers.get(Place(link, group, virtual))
        held = [local for p in params if (local := _local(p, grid, t, e)) is not None]
        entries = _fit(held, buckets) if buckets else None
        if buckets is None or entries is None:
            return None
        out.append((buckets, f"tp{t}" if grid.ep == 1 else f"tp{t}ep{e}", entries))
    return out


def _fit(params: list[tuple[Param, bool]], buckets: list[Bucket]) -> list[Entry] | None:
    """Every parameter's place, the last first; None where a place is not a chunk's."""
    entries: list[Entry] = []
    bucket = at = 0
    for row, copied in reversed(params):
        start, size = -(-at // _ALIGNED) * _ALIGNED, row.layout.size
        if bucket == len(buckets) or start + size > buckets[bucket].size:
            return None
        if not {start, start + size} <= buckets[bucket].cuts:
            return None
        entries.append(Entry(None if copied else row, bucket, start, size))
        at = start + size
        if at == buckets[bucket].size:
            bucket, at = bucket + 1, 0
    return entries if bucket == len(buckets) else None


def _local(p: Parameter, grid: Grid, t: int, e: int) -> tuple[Param, bool] | None:
    """What one rank holds of a parameter, and whether it is a copy of another rank's."""
    rule = p.rule
    if rule.expert is not None and rule.expert[0] // -(-rule.expert[1] // grid.ep) != e:
        return None
    if rule.tp is None:
        return p.local(p.parts), t > 0
    return p.local([shard(part, grid.tp, t, rule.tp) for part in p.parts]), p.copied


def _stored(buckets: list[Bucket], rank: str, entries: list[Entry]) -> Iterator[Stored]:
    for row, bucket, start, size in entries:
        if row is None:
            continue
        flat = Param(row.name, row.layout.reshape(-1), Rule(layer=row.rule.layer), row.shift)
        for kind, record in buckets[bucket].records.items():
            state = state_row(flat, kind)
            chunks = tuple(
                Chunk(Box((c.offsets[0] - start,), c.shape), c.file, c.start_bytes, c.length_bytes)
                for c in record.chunks
                if start <= c.offsets[0] < start + size
            )
            name = f"{state.name}@{rank}"
            yield Stored(name, record.dtype, state.layout, chunks, state.rule, record.name, state.shift)

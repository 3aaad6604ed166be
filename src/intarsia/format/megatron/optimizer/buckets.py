"""Optimizer state that Megatron stores in buckets (`dp_reshardable`, its default).

Each model-parallel rank lays its parameters out in a flat buffer, the last one first, each
beginning at a multiple of 64 elements, and cuts the buffer into buckets.  A bucket is stored as
one flat tensor.  Nothing says which parameter is where; but every parameter and every gap is a
chunk of its own, so an order of the parameters is right only where each of them begins and ends
with a chunk and the last one ends the last bucket.  We try the orders that Megatron's modules
have; exactly one must fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from intarsia.errors import FormatError
from intarsia.family import Param
from intarsia.format.dcp.metadata import TensorRecord
from intarsia.format.megatron.optimizer.buffers import Bucket, BufferPlace, Buffers, buffers_of
from intarsia.format.megatron.optimizer.eight_bits import is_of_type, why_unfit
from intarsia.format.megatron.optimizer.parameter_order import (
    SPECS,
    Parameter,
    parameters_in_memory,
)
from intarsia.format.megatron.optimizer.stages import NumberedParameters
from intarsia.format.megatron.optimizer.state_tensors import state_row
from intarsia.frozen import frozen
from intarsia.layout import shard
from intarsia.mesh import Rule
from intarsia.planning.manifest import Chunk, Stored
from intarsia.state.names import StateName

_ALIGNED = 64


def read_buckets(
    records: Sequence[TensorRecord],
    model: Sequence[Stored],
    where: str,
    copies: list[Stored] | None = None,
    in_bf16: Collection[int] = (),
) -> list[Stored]:
    """The state of every parameter, as parts of the buckets that hold it; `copies` receives its copies.

    `model` are the model's tensors, layer by layer and expert by expert, and the state that is stored by
    name; `in_bf16` are the layers that a run in eight bits keeps so.  How many ranks tensor parallelism
    had is one of the numbers of parts that their chunks show: the one that fits.
    """
    by_link = buffers_of(records)
    model = _without_named_state(model)
    if {*by_link} - {0, 1}:
        raise FormatError(f"{where} has the state of {len(by_link)} optimizers", hint=_HINT)
    places = [x for by_type in by_link.values() for buffers in by_type.values() for x in buffers]
    if (groups := 1 + max(place.group for place in places)) > len(records):
        raise FormatError(f"{where} has {len(records)} buckets for {groups} ranks", hint=_HINT)
    fits: dict[str, _States] = {}
    faults: list[FormatError] = []
    for tp, etp in product(
        *(_cuts(s for s in model if s.rule.is_expert == e) for e in (False, True))
    ):
        try:
            mesh, states = _read_all(by_link, model, tp, etp, where, in_bf16)
        except FormatError as error:
            faults.append(error)
        else:
            if states not in fits.values():
                fits[mesh] = states
    if not fits:
        raise faults[0]
    if len(fits) > 1:
        text = f"{where}: the optimizer's buffers fit several meshes: {', '.join(sorted(fits))}"
        raise FormatError(text, hint=_HINT)
    ((found, twins),) = fits.values()
    if copies is not None:
        copies += twins
    return found


def _without_named_state(model: Sequence[Stored]) -> list[Stored]:
    """The parameters that buckets hold: Muon keeps matrices whole, with state by name, beside Adam's buckets."""
    states = {x.name: StateName.of(x.name) for x in model}
    named = {state.parameter for state in states.values() if state}
    return [x for x in model if states[x.name] is None and x.name not in named]


_States = tuple[list[Stored], list[Stored]]
"""The states of parameters, and copies of them on other ranks."""


def _read_all(
    by_link: Mapping[int, Mapping[str, Buffers]],
    model: Sequence[Stored],
    tp: int,
    etp: int,
    where: str,
    in_bf16: Collection[int],
) -> tuple[str, _States]:
    """The mesh and the states in all buffers, where `tp` ranks cut tensors and `etp` ranks experts.

    The number of groups then gives that of pipeline stages.
    """
    found, twins = list[Stored](), list[Stored]()
    pp = ep = 1
    for link, by_type in sorted(by_link.items()):
        # Without expert parallelism the experts are in the buffers of all other parameters.
        experts = bool(link) and len(by_link) > 1
        held = [s for s in model if len(by_link) == 1 or s.rule.is_expert == experts]
        places = [place for buffers in by_type.values() for place in buffers]
        groups, chunks = (1 + max(axis) for axis in zip(*places, strict=True))
        if experts:
            ep = groups // (etp * pp)
        else:
            pp = groups // tp
        grid = RankGrid(etp if experts else tp, etp, ep if experts else 1, pp, chunks)
        if grid.size != groups:
            raise FormatError(
                f"{where} has optimizer state of {groups} ranks, its tensors are cut for {grid}",
                hint=_HINT,
            )
        for kind, of_type in by_type.items():
            params = [s for s in held if len(by_type) == 1 or is_of_type(s, kind, by_type, in_bf16)]
            rows = [Param(s.name, s.layout, s.rule, s.value) for s in params]
            for copied, stored in _read(of_type, rows, grid, where, why_unfit(by_type)):
                (twins if copied else found).append(stored)
    sizes = {"tp": tp, "etp": etp, "ep": ep, "pp": pp}
    shown = [f"{axis}={n}" for axis, n in sizes.items() if axis in ("tp", "pp") or len(by_link) > 1]
    return " ".join(shown), (found, twins)


def _cuts(model: Iterable[Stored]) -> list[int]:
    """Into how many parts tensor parallelism may have cut the tensors that it cuts, largest first."""
    counts = {
        len({c.box.offsets[s.rule.tp] for c in s.chunks})
        for s in model
        if s.rule.tp is not None and s.chunks and "linear_fc1." not in s.name
    }
    return sorted(counts, reverse=True) or [1]


_HINT = "save with --dist-ckpt-optim-fully-reshardable, or convert with --optimizer drop"


@frozen
class RankGrid:
    """The ranks that an optimizer's buffers belong to: tensor parallel fastest, pipeline slowest.

    `etp` is by how many ranks an expert is cut; further ranks of `tp` hold copies.
    """

    tp: int
    etp: int
    ep: int
    pp: int
    chunks: int

    def __str__(self) -> str:
        return f"tp={self.tp} etp={self.etp} ep={self.ep} pp={self.pp}"

    @property
    def size(self) -> int:
        return self.tp * self.ep * self.pp

    def groups(self, stage: int) -> Iterator[tuple[int, int, int]]:
        """The group, and its place in tensor and expert parallelism, of every rank of a stage."""
        for e in range(self.ep):
            for t in range(self.tp):
                yield (stage * self.ep + e) * self.tp + t, t, e


def _read(
    buffers: Buffers, rows: Sequence[Param], grid: RankGrid, where: str, why_unfit: str
) -> Iterator[tuple[bool, Stored]]:
    fits: dict[Any, list[_Placed]] = {}
    for spec in SPECS:
        placed = _fit_all(buffers, parameters_in_memory(rows, spec), grid)
        if placed is not None:
            order = tuple(
                (e.row.name, e.bucket, e.start) for _, _, entries in placed for e in entries
            )
            fits[order] = placed
    if len(fits) != 1:
        orders = f"{len(fits) or 'no'} orders of {len(rows):,} parameters"
        raise FormatError(
            f"{where}: {orders} fit the optimizer's {len(buffers)} buffers ({grid})",
            hint=_HINT if fits else f"{why_unfit}; {_HINT}",
        )
    for buckets, rank, entries in next(iter(fits.values())):
        yield from _stored(buckets, rank, entries)


class BucketEntry(NamedTuple):
    """A parameter in a bucket; `copied` where another rank's copy is the one that is read."""

    row: Param
    copied: bool
    bucket: int
    start: int
    size: int


_Placed = tuple[list[Bucket], str, list[BucketEntry]]


def _fit_all(buffers: Buffers, params: list[Parameter], grid: RankGrid) -> list[_Placed] | None:
    """The parameters of every rank in its buckets, stage by stage; None where one does not fit."""
    layers = 1 + max((p.rule.layer[0] for p in params if p.rule.layer), default=-1)
    numbered = NumberedParameters.of(params)
    out: list[_Placed] = []
    start = 0
    for stage in range(grid.pp * grid.chunks):
        virtual, rank = divmod(stage, grid.pp)
        for end in range(layers, start - 1, -1):
            held = numbered.of_stage(start, end, stage, stage == grid.pp * grid.chunks - 1)
            fitted = _fit_stage(buffers, held, grid, rank, virtual)
            if fitted is not None:
                out += fitted
                start = end
                break
        else:
            return None
    return out if start == layers else None


def _fit_stage(
    buffers: Buffers, params: list[Parameter], grid: RankGrid, stage: int, virtual: int
) -> list[_Placed] | None:
    out: list[_Placed] = []
    for group, t, e in grid.groups(stage):
        buckets = buffers.get(BufferPlace(group, virtual), [])
        entries = _fit([x for p in params if (x := _local(p, grid, t, e))], buckets)
        if entries is None:
            return None
        out.append((buckets, f"tp{t}" if grid.ep == 1 else f"tp{t}ep{e}", entries))
    return out


def _fit(params: list[tuple[Param, bool]], buckets: list[Bucket]) -> list[BucketEntry] | None:
    """Every parameter's place, the last first; None where a place is not a chunk's.

    A bucket ends with a parameter, or where one would begin that has a bucket for itself.
    """
    entries: list[BucketEntry] = []
    bucket = at = 0
    for row, copied in reversed(params):
        start, size = _aligned(at), row.layout.size
        if bucket < len(buckets) and at and start >= buckets[bucket].size:
            bucket, start = bucket + 1, 0
        if bucket == len(buckets) or start + size > buckets[bucket].size:
            return None
        if not {start, start + size} <= buckets[bucket].cuts:
            return None
        entries.append(BucketEntry(row, copied, bucket, start, size))
        at = start + size
    filled = bucket == len(buckets) - 1 and _aligned(at) >= buckets[bucket].size
    return entries if filled or not (params or buckets) else None


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED


def _local(p: Parameter, grid: RankGrid, t: int, e: int) -> tuple[Param, bool] | None:
    """What one rank holds of a parameter, and whether it is a copy of another rank's."""
    rule, tp = p.rule, grid.tp
    if rule.expert is not None:
        tp = grid.etp
        if rule.expert[0] // -(-rule.expert[1] // grid.ep) != e:
            return None
    if rule.tp is None:
        return p.local(p.parts), t > 0
    parts = [shard(part, tp, t % tp, rule.tp) for part in p.parts]
    return p.local(parts), p.copied or t >= tp


def _stored(
    buckets: list[Bucket], rank: str, entries: list[BucketEntry]
) -> Iterator[tuple[bool, Stored]]:
    for row, copied, bucket, start, size in entries:
        flat = Param(row.name, row.layout.reshape(-1), Rule(layer=row.rule.layer), row.value)
        for kind, record in buckets[bucket].records.items():
            state = state_row(flat, kind)
            chunks = tuple(
                Chunk(c.box.moved((-start,)), c.file, c.start_bytes, c.length_bytes)
                for c in record.chunks
                if start <= c.box.offsets[0] < start + size
            )
            said = record.dtype, state.layout, chunks, state.rule, record.name, state.value
            yield copied, Stored(f"{state.name}@{rank}", *said)

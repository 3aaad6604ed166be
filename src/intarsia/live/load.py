"""Loading a checkpoint of any format into a live model on any mesh.

Every process works out which elements its memory is for, and reads those bytes and no others;
nothing is broadcast.  Ranks meet twice: before the first byte, where any of them may object, and
after the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.errors import CoverageError, IntarsiaError, LayoutError, UsageError
from intarsia.family import Param, table_for
from intarsia.formats import folder_of, format_named
from intarsia.layout import Layout
from intarsia.live import megatron_rows
from intarsia.live.entries import extra_in, groups_in
from intarsia.live.fill import fill_holdings
from intarsia.live.holding import Holding, check_shape, cut, dtype_of, fits, is_present, memory_of
from intarsia.live.latest import resolve
from intarsia.live.materialise import materialise
from intarsia.live.megatron_model import chunks_of, install, is_megatron, refuse_optimizer
from intarsia.live.megatron_settings import unlike_settings, with_settings
from intarsia.live.names import config_of, find_rows, manifest_for, named_tensors
from intarsia.live.optimizer import MASTER, StateToFill, put, put_groups, state_to_fill
from intarsia.mesh import Box, Mesh
from intarsia.planning.copy import copies_into, sources_of
from intarsia.planning.manifest import Manifest
from intarsia.run.budget import Budget
from intarsia.run.crew import Crew, ranks_of_model
from intarsia.run.execute import Source
from intarsia.run.values import as_float64, bits_dtype

Progress = Callable[[int, int], None]


@dataclass
class Loaded:
    """What a load filled on this rank, what it read for that, and what is to be said of it."""

    path: str
    format: str
    filled: list[str] = field(default_factory=list)
    cast: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    never_stepped: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    read_bytes: int = 0
    held_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        notes = "".join(f"\nnote     {note}" for note in self.notes)
        return (
            f"{len(self.filled)} tensors from {self.path} ({self.format}),"
            f" {self.read_bytes:,} bytes read for {self.held_bytes:,} held{notes}"
        )


def load(
    path: str | Path,
    into: Any,
    optimizer: Any = None,
    *,
    config: Any = None,
    mesh: Any = None,
    rank: int | None = None,
    strict: bool = True,
    cast: bool = True,
    device: Any = None,
    memory: str | int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Loaded:
    """Fill a module or a state dict, and an optimizer, each rank with its own elements.

    Parameters may be DTensors on any mesh, plain tensors, or on `meta` (then they get memory on
    `device`).  A model of Megatron-core's, or a list of its chunks, says itself what it holds of
    which tensor.  `mesh` and `rank` say which part of each tensor plain local shards are.  `strict`
    refuses a checkpoint with tensors that the model does not have; `cast=False` refuses another
    floating-point type, which otherwise is rounded to and reported.
    """
    team = ranks_of_model()
    with team.together() as shared:
        job = _Job.of(resolve(path), into, optimizer, config, _place(mesh, rank, team), device)
        shared.value = job.disputed, job.unfit, job.unused
    with team.together():
        job.settle(shared.values, strict=strict, cast=cast)
        job.run(Budget.of(memory, workers), team, progress)
    return job.result


def _place(mesh: Any, rank: int | None, team: Crew) -> tuple[Mesh, int] | None:
    if mesh is None:
        if rank is not None:
            raise UsageError("`rank` is a place in a mesh, and no `mesh` was given")
        return None
    where = Mesh.parse(mesh)
    number = team.rank if rank is None else rank
    if not 0 <= number < where.size:
        raise UsageError(f"rank {number} is not in a mesh of {where.size} ranks ({where})")
    return where, number


@dataclass
class _Job:
    """One load on one rank: everything is found and proven before the first byte is read."""

    manifest: Manifest
    into: Any
    optimizer: Any
    tensors: dict[str, Any]
    rows: Mapping[str, Param]
    place: tuple[Mesh, int] | None
    disputed: set[str]
    unfit: set[str]
    unused: set[str]
    result: Loaded
    holdings: list[Holding] = field(default_factory=list)
    states: StateToFill | None = None

    @staticmethod
    def of(
        path: Path,
        into: Any,
        optimizer: Any,
        config: Any,
        place: tuple[Mesh, int] | None,
        device: Any,
    ) -> _Job:
        modules = [part for part in chunks_of(into) if hasattr(part, "_apply")]
        left = [name for module in modules for name in materialise(module, device)]
        manifest = manifest_for(path, into, config)
        if is_megatron(into):
            refuse_optimizer(optimizer)
            if place is not None:
                raise UsageError(
                    "a Megatron model says itself which part of each tensor it holds",
                    hint="leave `mesh` and `rank` out",
                )
            tensors, found = megatron_rows.rows_of(into, manifest.config)
        else:
            tensors = {n: x for n, x in named_tensors(into).items() if is_present(x)}
            found, manifest = find_rows(tensors, manifest)
        missing = [n for n in found.missing if tensors[n].numel()]
        if missing:
            raise CoverageError(
                f"{len(missing)} of {len(tensors)} tensors of the model have no source in {path}:"
                f" {', '.join(missing[:4])}{', …' if len(missing) > 4 else ''}",
                hint="the checkpoint is another model's, or incomplete",
            )
        result = Loaded(str(path), manifest.format, config=config_of(into) or manifest.config)
        if is_megatron(into):
            result.config = with_settings(manifest.config, into)
            result.notes += unlike_settings(into)
        if left:
            result.notes.append(
                f"{len(left)} buffers stay on `meta`, as nothing says what they hold: {left[0]}"
            )
        job = _Job(
            manifest, into, optimizer, tensors, found.rows, place, set(), set(), set(), result
        )
        job._check()
        return job

    def _check(self) -> None:
        """Shapes, sources, and which reading of its placements fits each DTensor here."""
        for name, row in self.rows.items():
            tensor, layout = self.tensors[name], row.layout
            if self._box(name, row) is None:
                check_shape(name, layout.shape, tensor, self.manifest.path)
                if not fits(layout, tensor):
                    self.disputed.add(name)
                    if not fits(layout, tensor, literal=True):
                        self.unfit.add(name)
        used = {n for row in self.rows.values() for n in self._layout(row).tensors}
        tied = table.tied if (table := table_for(self.manifest.config)) else {}
        used |= {name for name, to in tied.items() if to in used}
        used |= {to for name, to in tied.items() if name in used}
        self.unused = {
            n for n in self.manifest.logical if n not in used and not n.startswith("optimizer.")
        }

    def settle(
        self, told: list[tuple[set[str], set[str], set[str]]], *, strict: bool, cast: bool
    ) -> None:
        """What all ranks have to agree on: how strided shards are read, and what nobody takes."""
        disputed = set().union(*(names for names, _, _ in told))
        unfit = set().union(*(names for _, names, _ in told))
        if wrong := sorted(unfit):
            from intarsia.live.holding import placed

            held = self.tensors.get(wrong[0])
            raise LayoutError(
                f"no reading of its placements gives `{wrong[0]}` the memory that some rank has"
                + (
                    f": {placed(held)}, {list(memory_of(held).shape)} here"
                    if held is not None
                    else ""
                ),
                hint="give `shape=` and `stride=` to `DTensor.from_local`, the same on all ranks",
            )
        unused = set.intersection(*(names for _, _, names in told))
        self.result.unused = sorted(unused - _ahead(self.manifest))
        if self.result.unused and strict:
            some = self.result.unused
            raise CoverageError(
                f"{len(some)} tensors of {self.manifest.path} are not in the model: {', '.join(some[:4])}",
                hint="load with strict=False if they are not wanted",
            )
        self.holdings = list(self._holdings(disputed))
        self._check_types(cast)
        self._prove()
        if self.optimizer is not None:
            self.states = state_to_fill(
                self.into, self.optimizer, self.rows, self.manifest, disputed
            )
            self.result.never_stepped = list(self.states.never_stepped)

    def _box(self, name: str, row: Param) -> Box | None:
        """The part of a tensor that a plain shard at the given place is."""
        tensor = self.tensors[name]
        if self.place is None or hasattr(tensor, "placements"):
            return None
        mesh, rank = self.place
        box = mesh.box(row.layout.shape, row.rule, rank) or Box.whole((0,) * tensor.dim())
        if tuple(box.shape) != tuple(tensor.shape):
            raise LayoutError(
                f"`{name}` has shape {list(tensor.shape)}, rank {rank} of {mesh} holds {list(box.shape)}"
                f" of {list(row.layout.shape)}",
                hint="give the mesh that the model was built for",
            )
        return box

    def _layout(self, row: Param) -> Layout:
        """A row's layout; what is absent because it is tied is taken from its twin."""
        tied = table.tied if (table := table_for(self.manifest.config)) else {}
        held = self.manifest.logical
        twins = {n: tied[n] for n in row.layout.tensors if n not in held and n in tied}
        return row.layout.rename(twins) if twins else row.layout

    def _holdings(self, literal: set[str]) -> Iterator[Holding]:
        for name, row in self.rows.items():
            tensor = self.tensors[name]
            layout = self._precise(self._layout(row), dtype_of(tensor, name).name)
            box = self._box(name, row)
            if box is not None:
                layout = layout.box(box.offsets, box.shape)
            else:
                layout = cut(layout, tensor, literal=name in literal)
            yield Holding(name, layout, memory_of(tensor), row.shift)

    def _precise(self, layout: Layout, wanted: str) -> Layout:
        """The main weights, where the model keeps fp32 and the checkpoint has both."""
        held = self.manifest.logical
        masters = [f"optimizer.{MASTER}.{n}" for n in layout.tensors]
        if wanted != "F32" or not masters or not all(m in held for m in masters):
            return layout
        if all(n in held and held[n].dtype.name == "F32" for n in layout.tensors):
            return layout
        return layout.rename(f"optimizer.{MASTER}.".__add__)

    def _check_types(self, cast: bool) -> None:
        for each in self.holdings:
            stored = {
                self.manifest.logical[n].dtype
                for n in each.layout.tensors
                if n in self.manifest.logical
            }
            for dtype in stored - {each.dtype}:
                if not (dtype.floating and each.dtype.floating):
                    raise LayoutError(
                        f"`{each.name}` is {each.dtype} in the model and {dtype} in {self.manifest.path}",
                        hint="make the model's tensor of the checkpoint's type",
                    )
                if not cast:
                    raise LayoutError(
                        f"`{each.name}` is {each.dtype} in the model and {dtype} in {self.manifest.path}",
                        hint="load with cast=True to round it, or change the model's type",
                    )
                self.result.cast.append(each.name)
        if self.result.cast:
            first = self.result.cast[0]
            self.result.notes.append(
                f"{len(self.result.cast)} tensors are of another floating-point type than the"
                f" checkpoint's, `{first}` among them: values were rounded to the model's"
            )

    def _prove(self) -> None:
        """Every element of every holding has exactly one source."""
        for each in self.holdings:
            layout = each.layout
            sources = sources_of(layout, self.manifest)
            box = Box.whole(layout.shape)
            held = (
                sum(copy.piece.size for copy in copies_into(layout, box, sources))
                if layout.size
                else 0
            )
            if held != layout.mapped:
                raise CoverageError(
                    f"{held:,} of {layout.mapped:,} elements of `{each.name}` on this rank have a source"
                    f" in {self.manifest.path}",
                    hint="the checkpoint is incomplete or its chunks overlap",
                )

    def run(self, budget: Budget, team: Crew, progress: Progress | None) -> None:
        holdings = self.holdings + (self.states.holdings if self.states else [])
        total = sum(each.nbytes for each in holdings)
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, total)

        with folder_of(self.manifest) as folder:
            source = Source(self.manifest, format_named(self.manifest.format), folder)
            fill_holdings(source, holdings, budget, advance)
            if is_megatron(self.into):
                install(self.into)
            if self.states is not None:
                self._count(source, self.states)
                put(self.optimizer, self.states.fresh)
                lost = put_groups(self.into, self.optimizer, groups_in(self.manifest, folder))
                self.result.notes += [f"no hyperparameters were stored for {x}" for x in lost]
            extra, notes = extra_in(self.manifest, folder, team.rank, team.size)
            self.result.extra = extra
            self.result.notes += notes
            self.result.read_bytes = folder.read_bytes
        self.result.held_bytes = total
        self.result.filled = [each.name for each in holdings]

    def _count(self, source: Source, states: StateToFill) -> None:
        """Read the counters; those of one parameter's parts must agree."""
        from intarsia.checkpoint import Checkpoint

        with Checkpoint(self.manifest) as checkpoint:
            known: dict[str, float] = {}
            for tensor, names in states.counters:
                for name in names:
                    if name not in known:
                        dtype = self.manifest.logical[name].dtype
                        bits = np.frombuffer(checkpoint[name].tobytes(), bits_dtype(dtype))
                        known[name] = float(as_float64(bits, dtype)[0])
                values = {known[name] for name in names}
                if len(values) > 1:
                    raise IntarsiaError(
                        f"{names[0]} and its companions are at steps {sorted(values)}, one parameter"
                        " holds them all",
                        hint="the checkpoint's parts were saved at different steps",
                    )
                tensor.fill_(values.pop())


def _ahead(manifest: Manifest) -> set[str]:
    """Tensors that the checkpoint's model may have and the Transformers module leaves out."""
    table = table_for(manifest.config)
    if table is None:
        return set()
    module = table.dialects["hf-module"]
    taken = {n for name in module for n in module.operands(name)}
    return table.optional - taken

"""What a rank's memory asks of a checkpoint, and what this rank alone cannot settle."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any

from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError, LayoutError, UsageError, few
from intarsia.family import Param, table_for
from intarsia.format.folder.adapters import how_to_load
from intarsia.format.naming.flat_parameters import flat_parameters, refuse_flat
from intarsia.layout import Layout
from intarsia.live.loading.beside import Beside
from intarsia.live.loading.quantised import check_quantised
from intarsia.live.megatron import rows as megatron_rows
from intarsia.live.model.contents import ModelContents
from intarsia.live.model.holding import (
    Holding,
    check_shape,
    dtype_of,
    fits_memory,
    held_layout,
    is_dtensor,
    is_present,
    memory_id,
    memory_of,
)
from intarsia.live.model.names import LiveRows, find_rows
from intarsia.mesh import Box, Mesh
from intarsia.opened.equal import equal
from intarsia.planning.inventory import items_left_out
from intarsia.planning.manifest import Manifest
from intarsia.state.names import is_state, master_of

RankOfMesh = tuple[Mesh, int]


@dataclass(frozen=True)
class Doubts:
    """What one rank cannot settle alone: readings of placements that do not fit its memory (`disputed`
    in the first reading, `unfit` in both), tensors of the checkpoint that it does not take,
    parameters whose state its optimizer does not, and whether its modules' state dicts hold copies."""

    disputed: frozenset[str]
    unfit: frozenset[str]
    unused: frozenset[str]
    unused_state: frozenset[str] = frozenset()
    copies: bool = False


@dataclass(frozen=True)
class Demand:
    """The tensors of a model on this rank, each with the row that says what its elements are.

    `place` says which part of each tensor a plain one is; `contents` what was given, if not Megatron's;
    `adapters` are PEFT's tensors, which the checkpoint of the model inside does not hold.
    """

    manifest: Manifest
    tensors: Mapping[str, Any]
    rows: Mapping[str, Param]
    place: RankOfMesh | None = None
    contents: ModelContents = ModelContents()
    adapters: frozenset[str] = frozenset()

    @staticmethod
    def of(
        into: Any, manifest: Manifest, place: RankOfMesh | None, contents: ModelContents | None
    ) -> Demand:
        """What a module or a state dict asks for; raise where a tensor has no source."""
        if contents is None:
            if place is not None:
                raise UsageError(
                    "a Megatron model itself defines which part of each tensor it holds",
                    hint="leave `mesh` and `rank` out",
                )
            tensors, found = megatron_rows.memory_and_rows(into, manifest.config)
        else:
            tensors = {n: x for n, x in contents.tensors.items() if is_present(x)}
            found, manifest = _rows(tensors, contents, manifest)
            found = _with_tied(found, tensors)
        flat = flat_parameters(manifest.logical)
        refuse_flat((n for n in flat if n not in tensors), manifest.path)
        found = check_quantised(tensors, found, manifest)
        peft = contents.adapters if contents else {}
        missing = [n for n in found.missing if tensors[n].numel() and not peft.get(n)]
        adapters = {n for n, again in peft.items() if not again}
        alone = bool(missing) and adapters.isdisjoint(found.rows) and adapters.issuperset(missing)
        if missing and not alone:
            raise CoverageError(
                f"{len(missing)} of {len(tensors)} tensors of the model have no source in"
                f" {manifest.path}: {few(missing, 4)}",
                hint=how_to_load(manifest) or _where(missing, manifest),
            )
        left = frozenset(missing)
        return Demand(manifest, tensors, found.rows, place, contents or ModelContents(), left)

    def apart(self) -> Demand:
        """The same, to be read into memory of its own, where modules' state dicts hold only copies."""
        contents = self.contents.apart()
        return replace(
            self, contents=contents, tensors={n: contents.tensors[n] for n in self.tensors}
        )

    @cached_property
    def doubts(self) -> Doubts:
        """What the ranks have to agree on; raise where a shape is wrong."""
        disputed, unfit, used = set[str](), set[str](), set[str]()
        for name, row in self.rows.items():
            used.update(self._layout(row).tensors)
            if self._box(name) is not None:
                continue
            tensor = self.tensors[name]
            check_shape(name, row.layout.shape, tensor, self.manifest.path)
            if is_dtensor(tensor) and not fits_memory(row.layout, tensor):
                disputed.add(name)
                if not fits_memory(row.layout, tensor, literal=True):
                    unfit.add(name)
        logical = self.manifest.logical
        # A tensor without elements has nothing that could be left out.
        left = {n for n in logical.keys() - used if not is_state(n) and logical[n].size}
        left -= self.contents.extra_state.keys()
        copies = bool(self.contents.copies)
        return Doubts(
            frozenset(disputed),
            frozenset(unfit),
            frozenset(left - self._prediction_layers - self.beside.counters),
            copies=copies,
        )

    def equal_twins(self, unused: frozenset[str], window_bytes: int) -> frozenset[str]:
        """Those of the tensors that no rank takes in whose place an equal one is taken, which they are tied to."""
        taken = self.manifest.logical.keys() - unused - self._prediction_layers
        both = [*self._tied.items(), *((to, name) for name, to in self._tied.items())]
        pairs = [(one, other) for one, other in both if one in unused and other in taken]
        if not pairs:
            return frozenset()
        with Checkpoint(self.manifest) as checkpoint:
            return frozenset(a for a, b in pairs if equal(checkpoint, a, b, window_bytes))

    def without_prediction_layers(self, names: frozenset[str]) -> frozenset[str]:
        """Parameters that the model could have: none that its module leaves out or holds under the name of a tied tensor."""
        return frozenset(names - self._prediction_layers - self._tied.keys())

    def holdings(self, literal: frozenset[str]) -> Iterator[Holding]:
        """Each tensor's memory here, and the logical elements that go into it."""
        for name, row in self.rows.items():
            tensor = self.tensors[name]
            layout = self._precise(self._layout(row), dtype_of(tensor, name).name)
            layout = self.part_of(name, layout, tensor, literal)
            yield Holding(name, layout, memory_of(tensor), row.value)

    def part_of(self, name: str, layout: Layout, tensor: Any, literal: Collection[str]) -> Layout:
        """What of a layout goes into a tensor that is cut as the one of this name: itself, or state of it."""
        box = self._box(name)
        if box is None:
            return held_layout(layout, tensor, literal=name in literal)
        return layout.box(box.offsets, box.shape)

    @cached_property
    def beside(self) -> Beside:
        """What the checkpoint holds beside the models that are loaded, and is not taken here."""
        taken = {n for row in self.rows.values() for n in row.layout.tensors}
        return Beside.of(self.manifest, self.contents, taken)

    @cached_property
    def _tied(self) -> Mapping[str, str]:
        table = table_for(self.manifest.config)
        return table.tied if table else {}

    @cached_property
    def _twins(self) -> Mapping[str, str]:
        """The tied tensors that the checkpoint does not have."""
        return {n: to for n, to in self._tied.items() if n not in self.manifest.logical}

    @cached_property
    def _prediction_layers(self) -> set[str]:
        """Tensors that a checkpoint may have and the Transformers module leaves out."""
        table = table_for(self.manifest.config)
        if table is None:
            return set()
        module = table.dialects["hf-module"]
        return table.optional - {n for name in module for n in module.operands(name)}

    def _layout(self, row: Param) -> Layout:
        """A row's layout; what is absent because it is tied is taken from the tensor that it is tied to."""
        twins = {n: to for n, to in self._twins.items() if n in row.layout.tensors}
        return row.layout.rename(twins) if twins else row.layout

    def _precise(self, layout: Layout, wanted: str) -> Layout:
        """The main weights, where the model keeps fp32 and the checkpoint's weights are shorter."""
        held = self.manifest.logical
        if wanted != "F32" or not layout.tensors:
            return layout
        if not all(master_of(n) in held for n in layout.tensors):
            return layout
        if all(n in held and held[n].dtype.name == "F32" for n in layout.tensors):
            return layout
        return layout.rename(master_of)

    def _box(self, name: str) -> Box | None:
        """The part of a tensor that a plain shard at the given place is."""
        tensor, row = self.tensors[name], self.rows[name]
        if self.place is None or is_dtensor(tensor):
            return None
        mesh, rank = self.place
        box = mesh.box(row.layout.shape, row.rule, rank) or Box.whole((0,) * tensor.dim())
        if tuple(box.shape) != tuple(tensor.shape):
            raise LayoutError(
                f"`{name}` has shape {list(tensor.shape)}, rank {rank} of {mesh} holds"
                f" {list(box.shape)} of {list(row.layout.shape)}",
                hint="give the mesh that the model was built for",
            )
        return box


def _rows(
    tensors: Mapping[str, Any], contents: ModelContents, manifest: Manifest
) -> tuple[LiveRows, Manifest]:
    """The rows of the model's own names, or of all names as PEFT's state dict has them."""
    found, named = find_rows(tensors, manifest)
    spelled = contents.names_of_peft
    # A table has rows of the model's own names, stored or not.
    sought = (n for row in found.rows.values() for n in row.layout.tensors) if spelled else ()
    if spelled.keys() >= tensors.keys() and (
        found.missing or not named.logical.keys() >= {*sought}
    ):
        other, again = find_rows({spelled[n]: x for n, x in tensors.items()}, manifest)
        rows = {**other.rows, **_below_the_key(other, again)}
        if all(spelled[n] in rows for n in tensors):
            return LiveRows({n: rows[spelled[n]] for n in tensors}, ()), again
    return found, named


def _below_the_key(found: LiveRows, manifest: Manifest) -> dict[str, Param]:
    """The rows that are missing, where all names are on disk below one key: what PEFT adds beside the model keeps it."""
    held = {each.on_disk: each for each in manifest.stored.values()} if found.missing else {}
    ends = [f".{name}" for name in found.missing[:1]]
    keys = [name.removesuffix(end[1:]) for end in ends for name in held if name.endswith(end)]
    keys = [k for k in keys if all(k + n in held for n in (*found.rows, *found.missing))]
    below = {n: held[keys[0] + n] for n in found.missing} if len(keys) == 1 else {}
    return {n: Param(x.name, x.layout, x.rule, x.value) for n, x in below.items()}


def _with_tied(found: LiveRows, tensors: Mapping[str, Any]) -> LiveRows:
    """With the names that a checkpoint lacks and that are other names of memory which it fills, as in files
    that hold a tied tensor once."""
    if not found.missing:
        return found
    by_memory = {memory_id(tensors[name]): row for name, row in found.rows.items()}
    tied = {n: by_memory[k] for n in found.missing if (k := memory_id(tensors[n])) in by_memory}
    return LiveRows({**found.rows, **tied}, tuple(n for n in found.missing if n not in tied))


def _where(missing: Sequence[str], manifest: Manifest) -> str:
    """How to load tensors that the checkpoint may have under a key, or in a section that is not read."""
    if missing[0] in manifest.entries:
        return f"the checkpoint has a value of the name `{missing[0]}` that is no tensor: give one of its kind"
    first, held = f".{missing[0]}", [n for n in manifest.logical if not is_state(n)]
    keys = [name.removesuffix(first) for name in held if name.endswith(first)]
    found = [key for key in keys if all(f"{key}.{name}" in manifest.logical for name in missing)]
    if len(found) == 1:
        return f'they are below `{found[0]}.`: load with section="{found[0]}"'
    if found:
        listed = few([f"`{key}.`" for key in found], 8)
        return f'they are below {listed}: choose one, as with section="{found[0]}"'
    unread = [x.name for x in items_left_out(manifest.inventory) if x.kind == "section"]
    more = f", or lies in a section that is not read here: {few(unread, 8)} (section=)"
    return "the checkpoint is another model's, or incomplete" + (more if unread else "")


def place_of(mesh: Any, rank: int | None, own: int) -> RankOfMesh | None:
    """The place in a mesh that a caller gives, which is by default that of its `own` number."""
    if mesh is None:
        if rank is not None:
            raise UsageError("`rank` is a place in a mesh, and no `mesh` was given")
        return None
    where = Mesh.parse(mesh)
    number = own if rank is None else rank
    if not isinstance(number, Integral) or not 0 <= number < where.size:
        raise UsageError(f"rank {number!r} is not in a mesh of {where.size} ranks ({where})")
    return where, number

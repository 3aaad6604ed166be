"""Loading a checkpoint of any format into a live model on any mesh.

Every process works out which elements its memory is for, and reads those bytes and no others;
nothing is broadcast.  Ranks meet twice: before the first byte, where any of them may object, and
after the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import PurePath
from typing import Any

from intarsia.collector import seldom
from intarsia.errors import UsageError, add_hint, few
from intarsia.family import table_for
from intarsia.format.registry import find_checkpoint, folder_of, format_named
from intarsia.live.background import finish_last
from intarsia.live.entries import extra_in
from intarsia.live.loading.demand import Demand, RankOfMesh, cast_names, settle
from intarsia.live.loading.fill import Filling, fill, prove
from intarsia.live.loading.kept import check_kept, kept_of
from intarsia.live.loading.mapped import map_tensors
from intarsia.live.loading.materialise import (
    mark_filled,
)
from intarsia.live.loading.optimizer import OptimizerFilling
from intarsia.live.loading.other_masters import note_on_other_masters
from intarsia.live.loading.shared_memory import with_one_source
from intarsia.live.loading.wanted import Wanted, modules_of
from intarsia.live.megatron.model import install, is_megatron
from intarsia.live.megatron_settings import unlike_settings, with_settings
from intarsia.live.model.names import (
    checkpoint_facts,
    config_of_model,
    manifest_for,
    model_in,
    named_as_is,
)
from intarsia.live.report import Counts, Loaded
from intarsia.live.values import Values
from intarsia.mesh import Mesh
from intarsia.opened.entries import read_entries
from intarsia.opened.masters import check_rounded
from intarsia.planning.manifest import Manifest
from intarsia.run.budget import Budget
from intarsia.run.losses import changed_tensors, summary
from intarsia.run.progress import Progress, counting
from intarsia.run.ranks.crew import Crew, check_alike, ranks_of_model
from intarsia.run.source import Source
from intarsia.store.reading.headers_once import reading_once


@reading_once()
@seldom()
def load(
    path: str | PurePath,
    into: Any,
    optimizer: Any = None,
    *,
    config: Any = None,
    section: str | Sequence[str] | None = None,
    mesh: Any = None,
    rank: int | None = None,
    strict: bool = True,
    cast: bool = True,
    hyperparameters: str = "stored",
    optimizer_class: str = "same",
    device: Any = None,
    mapped: bool = False,
    group: Any = None,
    memory: str | int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Loaded:
    """Fill a module or a state dict, and an optimizer, each rank with its own elements.

    Parameters may be DTensors on any mesh, plain tensors, or on `meta` (then they get memory on
    `device`).  A model of Megatron-core's, or a list of its chunks, says itself what it holds of
    which tensor.  `section` names the model where the checkpoint holds several.  `mesh` and `rank`
    say which part of each tensor plain local shards are.  `strict` refuses a checkpoint with tensors
    that the model does not have, and one that would leave something of the model or of its optimizer as it
    was, which `report.kept` names otherwise; `cast=False` refuses another
    floating-point type, which otherwise is cast to; what that rounds is reported.  `hyperparameters` are those of
    the checkpoint ("stored"), or stay the optimizer's own ("mine").  `optimizer_class="any"` takes the
    state of another class of optimizer, where this one keeps the same kinds.  `mapped` leaves the model's
    tensors in the page cache, as views of a private mapping of the files, and refuses what cannot be
    mapped; optimizer state is read all the same.  `group` is the process
    group whose ranks load together (a pipeline stage's, say), if not all.  A save of this process that
    is under way in the background is finished first.
    """
    if hyperparameters not in ("stored", "mine"):
        raise UsageError(f"hyperparameters is {hyperparameters!r}", hint="stored or mine")
    if optimizer_class not in ("same", "any"):
        raise UsageError(f"optimizer_class is {optimizer_class!r}", hint="same or any")
    finish_last()
    team = ranks_of_model(group)
    with team.together() as shared:
        found = find_checkpoint(path)
        where = found.path
        budget = Budget.of(memory, workers)
        named = named_as_is(where, into, config, section)
        manifest = named or manifest_for(where, into, config, section)
        shared.value = checkpoint_facts(manifest) | {
            "strict": str(strict),
            "cast": str(cast),
            "hyperparameters": hyperparameters,
            "optimizer_class": optimizer_class,
            "optimizer": "none" if optimizer is None else "given",
            "mapped": str(mapped),
        }
    check_alike(shared.values)
    with team.together() as shared:
        by_model = partial(manifest_for, where, into, config, section) if named else None
        wanted = Wanted.of(into, optimizer, manifest, _place(mesh, rank, team), device, by_model)
        shared.value = wanted.doubts
    demand, own, brought = wanted.demand, wanted.own, None
    with team.together():
        manifest = demand.manifest
        if copied := any(each.copies for each in shared.values):
            demand = demand.apart()
        if mapped and (copied or is_megatron(into)):
            raise UsageError(
                "a model that fills its own memory (Megatron, or a state_dict() of copies) cannot be mapped",
                hint="load with mapped=False",
            )
        values = Values.of(demand.contents, manifest, team.size)
        kept = kept_of(demand.contents, values, wanted.on_meta, demand.adapters)
        if strict:
            check_kept(kept, manifest.path)
        settled = settle(demand, shared.values, budget.window_bytes, strict=strict)
        tied = _tied(into, manifest)
        settled = with_one_source(settled, manifest, tied, budget, strict=strict)
        check_rounded(manifest, settled.precise, budget, hint=_STALE)
        report = Loaded(str(where), manifest.format, unused=settled.unused, kept=kept)
        report.config = config_of_model(model_in(into)) or manifest.config
        if is_megatron(into):
            report.config = with_settings(manifest.config, into)
            report.notes += unlike_settings(into)
        report.cast = cast_names(settled.holdings, manifest, allowed=cast)
        report.notes += note_on_other_masters(settled.holdings, manifest)
        if wanted.computed:
            shown = few(sorted(wanted.computed), 4)
            report.notes.append(f"not loaded, because the model computes them itself: {shown}")
        if demand.counters:
            shown = few(sorted(demand.counters), 4)
            report.notes.append(f"not loaded, because a run saved them beside the model: {shown}")
        report.notes += found.notes
        entries = read_entries(manifest, budget.memory_bytes // 2) if manifest.entries else {}
        if own is not None:
            brought = OptimizerFilling.of(
                own,
                wanted.rows_with_state,
                manifest,
                entries,
                partial(demand.part_of, literal=settled.literal),
                strict=strict,
                hyperparameters=hyperparameters,
                optimizer_class=optimizer_class,
            )
            report.never_stepped = list(brought.states.never_stepped)
            report.kept |= brought.kept
            report.cast += cast_names(brought.states.holdings, manifest, allowed=cast)
        _fill(demand, settled.fillings, brought, budget, progress, report, mapped=mapped)
        with _changing():
            if is_megatron(into):
                install(into)
            if copied:
                demand.contents.give(manifest.path)
            if brought is not None:
                report.notes += brought.put(entries, manifest.path)
            report.extra, notes = extra_in(entries, team.rank, team.size)
            report.notes += notes
            values.put(demand.contents, manifest, entries, report.extra)
            if not copied:
                demand.contents.run_hooks(manifest.path)
        report.notes += summary(tuple(report.changed))
        fresh = brought.states.fresh if brought is not None else {}
        groups = own.settings.param_groups if own is not None else []
        report.count(Counts.of(len(settled.fillings), iter(fresh.values()), groups))
    for module in modules_of(into):
        mark_filled(module)
    return report


_STALE = (
    "if the weights are right, load into a model of their type, which takes them; if the main"
    " weights are right, load the checkpoint that they were saved with"
)


@contextmanager
def _changing() -> Iterator[None]:
    """A block that changes the model: what fails in it says so."""
    try:
        yield
    except BaseException as error:
        add_hint(error, "the model may be changed in part: load again before it is used")
        raise


def _tied(into: Any, manifest: Manifest) -> dict[str, str]:
    """The tensors that the model or the checkpoint takes from others by its configuration."""
    tables = (table_for(config) for config in (manifest.config, config_of_model(model_in(into))))
    return {name: to for table in tables if table for name, to in table.tied.items()}


def _place(mesh: Any, rank: int | None, team: Crew) -> RankOfMesh | None:
    if mesh is None:
        if rank is not None:
            raise UsageError("`rank` is a place in a mesh, and no `mesh` was given")
        return None
    where = Mesh.parse(mesh)
    number = team.rank if rank is None else rank
    if not 0 <= number < where.size:
        raise UsageError(f"rank {number} is not in a mesh of {where.size} ranks ({where})")
    return where, number


def _fill(
    demand: Demand,
    fillings: list[Filling],
    brought: OptimizerFilling | None,
    budget: Budget,
    progress: Progress | None,
    report: Loaded,
    *,
    mapped: bool,
) -> None:
    """Read every element, or map the model's; report what was filled, and what casts changed."""
    manifest, state, counters = demand.manifest, list[Filling](), list[Filling]()
    if brought is not None:
        state = prove(brought.states.holdings, manifest)
        counters = prove(brought.counters.values(), manifest)
    held = [each.holding for each in fillings + state]
    to_read = ([] if mapped else fillings) + state + counters
    with folder_of(manifest) as folder:
        source = Source(manifest, format_named(manifest.format), folder)
        if mapped:
            report.mapped_bytes = map_tensors(
                source, fillings, demand.tensors, demand.contents.loose.values()
            )
        total_bytes = sum(each.holding.nbytes for each in to_read)
        with _changing():
            losses = fill(source, to_read, budget, counting(progress, total_bytes))
        report.read_bytes = folder.read_bytes
    report.held_bytes = sum(each.nbytes for each in held)
    report.filled = [each.name for each in held]
    targets = {each.name: each.target for each in held} if losses else {}
    report.changed = list(changed_tensors(losses, targets))

"""Loading a checkpoint of any format into a live model on any mesh.

Every process works out which elements its memory is for, and reads those bytes and no others;
nothing is broadcast.  Ranks meet twice: before the first byte, where any of them may object, and
after the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

from intarsia.collector import seldom
from intarsia.errors import UsageError, add_hint, check_flags, few
from intarsia.format.registry import find_checkpoint, folder_of, format_named
from intarsia.live.background import finish_last
from intarsia.live.entries import extra_in
from intarsia.live.loading.demand import Demand, Doubts, place_of
from intarsia.live.loading.filling.fill import fill, prove
from intarsia.live.loading.filling.mapped import map_tensors
from intarsia.live.loading.kept import check_kept, kept_of
from intarsia.live.loading.materialise import mark_filled
from intarsia.live.loading.optimizer import OptimizerFilling
from intarsia.live.loading.other_masters import note_on_other_masters
from intarsia.live.loading.settled import Settled, cast_names, settle
from intarsia.live.loading.shared_memory import tied_in, with_one_source
from intarsia.live.loading.wanted import Wanted, modules_of
from intarsia.live.megatron.model import install, is_megatron
from intarsia.live.megatron_settings import unlike_settings, with_settings
from intarsia.live.model.contents import check_given
from intarsia.live.model.names import (
    checkpoint_facts,
    config_of_model,
    manifest_for,
    model_in,
    named_as_is,
)
from intarsia.live.report import Counts, Loaded
from intarsia.live.values import Values
from intarsia.opened.entries import read_entries
from intarsia.opened.masters import check_rounded
from intarsia.planning.inventory import Role
from intarsia.run.budget import Budget
from intarsia.run.losses import Losses, changed_tensors, summary
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
    options = _Options(strict, cast, hyperparameters, optimizer_class, mapped)
    options.check()
    finish_last()
    team = ranks_of_model(group)
    with team.together() as shared:
        check_given(into)
        found = find_checkpoint(path)
        budget = Budget.of(memory, workers)
        named = named_as_is(found.path, into, config, section, cut=mesh is not None)
        manifest = named or manifest_for(found.path, into, config, section)
        given = {"optimizer": "none" if optimizer is None else "given"}
        shared.value = checkpoint_facts(manifest) | options.facts | given
    check_alike(shared.values)
    with team.together() as shared:
        read = partial(manifest_for, found.path, config=config) if named else None
        wanted = Wanted.of(into, optimizer, manifest, place_of(mesh, rank, team.rank), device, read)
        shared.value = wanted.doubts
    with team.together():
        report = Loaded(str(found.path), wanted.demand.manifest.format)
        ready = _ready(into, wanted, shared.values, options, budget, team, report)
        report.notes += found.notes
        _fill(ready, budget, progress, mapped=mapped)
        with _changing():
            _put(into, ready, team)
        report.notes += summary(tuple(report.changed))
        fresh = (state for each in ready.brought for state in each.states.fresh.values())
        groups = [g for each in wanted.states for g in each.own.settings.param_groups]
        report.count(Counts.of(len(ready.settled.fillings), fresh, groups))
    for module in modules_of(into):
        mark_filled(module)
    return report


@dataclass(frozen=True)
class _Options:
    """What a load may do, the same on all ranks."""

    strict: bool
    cast: bool
    hyperparameters: str
    optimizer_class: str
    mapped: bool

    def check(self) -> None:
        check_flags(strict=self.strict, cast=self.cast, mapped=self.mapped)
        if self.hyperparameters not in ("stored", "mine"):
            raise UsageError(f"hyperparameters is {self.hyperparameters!r}", hint="stored or mine")
        if self.optimizer_class not in ("same", "any"):
            raise UsageError(f"optimizer_class is {self.optimizer_class!r}", hint="same or any")

    @property
    def facts(self) -> dict[str, str]:
        names = ("strict", "cast", "hyperparameters", "optimizer_class", "mapped")
        return {name: str(getattr(self, name)) for name in names}


@dataclass(frozen=True)
class _Ready:
    """A load that every rank agreed to: what is filled from where, before the first byte of it.

    `brought` is what fills the optimizers; `copied` says that some rank's state dict holds copies, which the
    model takes back.
    """

    demand: Demand
    settled: Settled
    brought: list[OptimizerFilling]
    values: Values
    entries: Mapping[str, bytes]
    copied: bool
    report: Loaded


def _ready(
    into: Any,
    wanted: Wanted,
    doubts: Sequence[Doubts],
    options: _Options,
    budget: Budget,
    team: Crew,
    report: Loaded,
) -> _Ready:
    """Settle what is filled from where, with the doubts of all ranks; raise where that cannot be."""
    demand, manifest = wanted.demand, wanted.demand.manifest
    if copied := any(each.copies for each in doubts):
        demand = demand.apart()
    if options.mapped and (copied or is_megatron(into)):
        raise UsageError(
            "a model that fills its own memory (Megatron, or a state_dict() of copies) cannot be mapped",
            hint="load with mapped=False",
        )
    values = Values.of(demand.contents, manifest, team.size)
    kept = kept_of(demand.contents, values, wanted.on_meta, demand.adapters)
    if options.strict:
        check_kept(kept, manifest.path)
    settled = settle(demand, doubts, budget.window_bytes, strict=options.strict)
    tied = tied_in(into, manifest)
    settled = with_one_source(settled, manifest, tied, budget, strict=options.strict)
    check_rounded(manifest, settled.precise, budget, hint=_STALE)
    report.unused, report.kept = settled.unused, kept
    report.cast = cast_names(settled.holdings, manifest, allowed=options.cast)
    _tell(report, into, wanted, settled)
    entries = read_entries(manifest, budget.memory_bytes // 2) if manifest.entries else {}
    brought = list[OptimizerFilling]()
    for state in wanted.states:
        apart = state.manifest is not manifest
        one = OptimizerFilling.of(
            state.own,
            state.rows,
            state.manifest,
            read_entries(state.manifest, budget.memory_bytes // 2) if apart else entries,
            partial(demand.part_of, literal=settled.literal),
            strict=options.strict,
            hyperparameters=options.hyperparameters,
            optimizer_class=options.optimizer_class,
        )
        brought.append(one)
        report.never_stepped += one.states.never_stepped
        report.kept |= one.kept
        held = one.states.holdings
        report.cast += cast_names(held, state.manifest, allowed=options.cast)
    return _Ready(demand, settled, brought, values, entries, copied, report)


def _tell(report: Loaded, into: Any, wanted: Wanted, settled: Settled) -> None:
    """Say which configuration the model has, and what of the checkpoint it does not take."""
    demand, manifest = wanted.demand, wanted.demand.manifest
    report.config = config_of_model(model_in(into)) or manifest.config
    if is_megatron(into):
        report.config = with_settings(manifest.config, into)
        report.notes += unlike_settings(into)
    report.notes += note_on_other_masters(settled.holdings, manifest)
    reasons = {"the model computes them itself": wanted.computed, **demand.beside.notes}
    for why, names in reasons.items():
        if names:
            report.notes.append(f"not loaded, because {why}: {few(sorted(names), 4)}")


def _put(into: Any, ready: _Ready, team: Crew) -> None:
    """Give the model and its optimizer what is not filled in place."""
    contents, manifest, report = ready.demand.contents, ready.demand.manifest, ready.report
    if is_megatron(into):
        install(into)
    if ready.copied:
        contents.give(manifest.path)
    for each in ready.brought:
        report.notes += each.put()
    beside = {x.name for x in manifest.inventory if x.role is Role.TRAINING}
    report.extra, notes = extra_in(ready.entries, team.rank, team.size, beside)
    report.notes += notes
    ready.values.put(contents, manifest, ready.entries, report.extra)
    if not ready.copied:
        contents.run_hooks(manifest.path)


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


def _fill(ready: _Ready, budget: Budget, progress: Progress | None, *, mapped: bool) -> None:
    """Read every element, or map the model's; report what was filled, and what casts changed."""
    demand, fillings, report = ready.demand, ready.settled.fillings, ready.report
    manifest = demand.manifest
    to_read = {id(manifest): (manifest, [] if mapped else [*fillings])}
    for each in ready.brought:
        found = to_read.setdefault(id(each.manifest), (each.manifest, []))[1]
        found += prove(each.holdings, each.manifest)
    held = [each.holding for each in fillings]
    held += [x for each in ready.brought for x in each.states.holdings]
    total_bytes = sum(each.holding.nbytes for _, found in to_read.values() for each in found)
    advance, losses = counting(progress, total_bytes), Losses()
    for source_manifest, wanted in to_read.values():
        with folder_of(source_manifest) as folder:
            source = Source(source_manifest, format_named(source_manifest.format), folder)
            if mapped and source_manifest is manifest:
                report.mapped_bytes = map_tensors(
                    source, fillings, demand.tensors, demand.contents.loose.values()
                )
            with _changing():
                losses += fill(source, wanted, budget, advance)
            report.read_bytes += folder.read_bytes
    report.held_bytes = sum(each.nbytes for each in held)
    report.filled = [each.name for each in held]
    targets = {each.name: each.target for each in held} if losses else {}
    report.changed = list(changed_tensors(losses, targets))

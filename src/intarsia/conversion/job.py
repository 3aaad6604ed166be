"""A conversion that is planned and proven, and not yet run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from intarsia.collector import paused
from intarsia.conversion.arranged import check_arrangement
from intarsia.conversion.feasible import check_feasible, notes_on_request
from intarsia.conversion.targets import targets_for
from intarsia.conversion.training_files import settle_files
from intarsia.errors import UsageError
from intarsia.family import table_for
from intarsia.format.base import Arrangement, WriteOptions
from intarsia.format.folder.adapters import refuse_adapter
from intarsia.format.folder.inventory import with_header_metadata
from intarsia.format.registry import (
    folder_of,
    format_named,
    read_manifest,
    root_of,
    with_rules_of_transformers,
)
from intarsia.format.request import Request, Wanted
from intarsia.frozen import frozen_open
from intarsia.opened.entries import entries_to_write
from intarsia.opened.model_names import check_hub_names, compared_with_model
from intarsia.planning.manifest import Manifest
from intarsia.planning.plan import Plan
from intarsia.planning.planner import make_plan
from intarsia.run.budget import Budget
from intarsia.run.ranks.crew import crew_size
from intarsia.state.names import is_state
from intarsia.store.reading.headers_once import reading_once
from intarsia.store.reading.replaced import Stamps
from intarsia.store.stamp import Stamp


@frozen_open
class Job:
    """A source, what is wanted of it, and the plan that proves it."""

    src: Manifest
    request: Request
    wanted: Wanted
    plan: Plan
    budget: Budget
    max_shard_bytes: int
    stamps: Stamps
    config: Mapping[str, Any] | None = None
    digests: bool = True

    def arrange(self) -> Arrangement:
        """Every byte's place in the destination."""
        along = entries_to_write(self.src, self.request, self.wanted, self.budget)
        options = WriteOptions(
            self.request.mesh,
            self.max_shard_bytes,
            along.entries,
            self.src.config,
            along.groups,
            along.step,
            self.request.dtype,
            self.src,
            self.src.metadata,
            self.request.rates,
        )
        arranged = format_named(self.request.to).arrange(self.wanted.targets, options)
        check_arrangement(self.request.to, self.wanted.targets, arranged)
        return arranged


@reading_once()
def prepare(
    src: str | PurePath | Manifest,
    request: Request,
    budget: Budget,
    *,
    max_shard_bytes: int = 5_000_000_000,
    config: str | PurePath | Mapping[str, Any] | None = None,
    section: str | Sequence[str] | None = None,
) -> Job:
    """Read the headers of the source, choose the targets, and prove the plan."""
    writer = format_named(request.to)
    manifest = src if isinstance(src, Manifest) else read_manifest(src, config, section=section)
    if writer.found_by_name:
        manifest = compared_with_model(manifest)
    known = table_for(manifest.config) is not None or manifest.quantised
    if request.dialect not in (None, "same") and not known:
        manifest = with_rules_of_transformers(manifest)
    if max_shard_bytes < 1:
        raise UsageError(f"a shard of {max_shard_bytes} bytes cannot hold a tensor")
    refuse_adapter(manifest, writer)
    format_named(manifest.format).refuse_part(manifest)
    check_feasible(manifest, request)
    with paused():
        wanted = targets_for(manifest, request)
        if writer.found_by_name:
            names = (t.name for t in wanted.targets if not is_state(t.name))
            check_hub_names(names, manifest, "these are Megatron's: --dialect hf writes the hub's")
        manifest, file_notes = settle_files(manifest, request, wanted)
        manifest = with_header_metadata(manifest, writer)
        stamps = stamps_of(manifest)
        budget = budget.for_work(
            sum(t.nbytes for t in wanted.targets),
            crew_size(),
            targets=len(wanted.targets),
            boxes=sum(len(t.boxes) for t in wanted.targets),
        )
        plan = make_plan(
            manifest,
            wanted.targets,
            to=request.to,
            mesh=request.mesh,
            peak_memory_bytes=budget.peak_bytes,
            window_bytes=budget.window_bytes,
            drop=dict(wanted.drop),
            notes=(
                *manifest.notes,
                *wanted.notes,
                *file_notes,
                *notes_on_request(manifest, request),
                *_contradictions(manifest),
            ),
        )
    # A configuration that leaves arguments out is good for reading, and is not written.
    written = None if manifest.config_doubts else manifest.config
    return Job(manifest, request, wanted, plan, budget, max_shard_bytes, stamps, written)


def _contradictions(src: Manifest) -> tuple[str, ...]:
    """What lies beside the tensors and contradicts the folder, which the result no longer shows."""
    with folder_of(src) as folder:
        found = format_named(src.format).contradictions(src, folder)
        return tuple(complaint.error.brief for complaint in found)


def stamps_of(src: Manifest) -> Stamps:
    """The stamps of every file that a checkpoint is read from."""
    root = root_of(src)
    read = {str(root / file): Stamp(*stamp) for file, stamp in src.stamps.items()}
    return Stamps.of(dict.fromkeys([*read, *(side.path for side in src.sides)]), read)

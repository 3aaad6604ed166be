"""One checkpoint compared with itself: whole, readable, true to its sums, free of known faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from intarsia.checking.alone.entries import altered_files, contradicting_entries, damaged_entries
from intarsia.checking.alone.headers import (
    NO_FAMILY,
    Headers,
    read_headers,
    why_unfinished,
)
from intarsia.checking.alone.state import misshapen_state, missing_state
from intarsia.checking.alone.structure import structure_faults
from intarsia.checking.alone.trainer_files import trainer_file_faults
from intarsia.checking.alone.training import masters_of_16_bits, notes_on_steps, steps_that_disagree
from intarsia.checking.alone.unmapped import notes_on_ends, unmapped_faults
from intarsia.checking.content.masters import (
    masters_that_differ,
    note_on_fewer_bits,
    weights_with_masters,
)
from intarsia.checking.content.one_tensor import content_faults, notes_of
from intarsia.checking.content.quantised_parts import part_faults
from intarsia.checking.content.repeats import made_by_copying, repeat_faults
from intarsia.checking.content.same_content import Content
from intarsia.checking.content.scales.numbers import (
    beside_scales_of_zero,
    declared_otherwise,
    scale_faults,
    scale_faults_of_headers,
    undeclared,
    weights_among,
)
from intarsia.checking.content.scales.owners import owner_faults
from intarsia.checking.content.scales.sizes import size_faults
from intarsia.checking.digests.digest_faults import digest_faults, digests_in, object_faults
from intarsia.checking.digests.own_reading import Expected
from intarsia.checking.fault import Fault, fault_of, gathered
from intarsia.checking.pair.ties import ties_for_sure
from intarsia.checking.survey.blockwise import survey, surveyed
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.document import Document, fields_of
from intarsia.errors import FormatError, IntarsiaError
from intarsia.family import table_for
from intarsia.family.optional_parts import notes_on_layers_left_out
from intarsia.format.folder.side_files import DIGESTS, config_given
from intarsia.format.registry import find_checkpoint, format_named, format_of, misleading
from intarsia.frozen import frozen_open
from intarsia.planning.inventory import links_to_nothing, unread_files, unread_sections
from intarsia.planning.manifest import Manifest
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress, after
from intarsia.store.reading.headers_once import reading_once
from intarsia.store.reading.lookup import given, is_folder
from intarsia.store.reading.replaced import unreplaced

_NOT_TILED = ("chunks-overlap", "chunk-mismatch", "elements-missing")
_NOT_JUDGED = "too little can be read: no tensor's content was checked"

ConfigLike = str | PurePath | Mapping[str, Any] | None


@frozen_open
class Soundness(Document):
    """Whether a checkpoint is sound; true where no fault was found."""

    a: str
    compared: int
    elements: int
    faults: tuple[Fault, ...]
    notes: tuple[str, ...] = ()
    format: str | None = None
    family: str | None = None

    @property
    def sound(self) -> bool:
        return not self.faults

    @property
    def different(self) -> tuple[Any, ...]:
        """Nothing: there is no second checkpoint to differ from."""
        return ()

    def __bool__(self) -> bool:
        return self.sound

    def as_json(self) -> dict[str, Any]:
        return {"sound": self.sound} | fields_of(self) | {"different": []}

    def __str__(self) -> str:
        if self.sound:
            return f"sound: {self.compared:,} tensors, {self.elements:,} elements"
        return "\n".join(map(str, self.faults))


@reading_once()
def examine(
    path: str | PurePath,
    config: ConfigLike,
    budget: Budget,
    progress: Progress | None = None,
    section: str | Sequence[str] | None = None,
) -> Soundness:
    """Look for every fault that one checkpoint can show.

    Raises where the path is no checkpoint at all; a checkpoint that cannot be read is at fault.
    """
    if isinstance(config, (str, PurePath)):
        config = config_given(config)
    with unreplaced(given(path)) as check:
        found = _examined(path, config, budget, progress, section)
        if not found:
            check()
    return found


def _examined(
    path: str | PurePath,
    config: Mapping[str, Any] | None,
    budget: Budget,
    progress: Progress | None,
    section: str | Sequence[str] | None,
) -> Soundness:
    where = given(path)
    try:
        format = format_of(find_checkpoint(where).path).name
    except FormatError:
        if (fault := why_unfinished(where)) is None:
            raise
        return Soundness(str(path), 0, 0, (fault,))
    headers = read_headers(where, config, section)
    if headers.manifest is not None:
        return _judged(headers.manifest, headers, where, budget, progress)
    if (fault := why_unfinished(where)) is not None:
        return Soundness(str(path), 0, 0, (fault,))
    return Soundness(str(path), 0, 0, gathered(headers.faults()), (_NOT_JUDGED,), format)


def _judged(
    manifest: Manifest, headers: Headers, where: PurePath, budget: Budget, progress: Progress | None
) -> Soundness:
    """What is wrong with a checkpoint whose headers can be read: by them, by its content, by its digests."""
    faults = [*headers.faults(), *structure_faults(manifest, headers.lost, headers.files)]
    faults += missing_state(manifest, headers.lost)
    faults += misshapen_state(manifest, headers.lost)
    faults += scale_faults_of_headers(manifest)
    known = {name for fault in faults for name in fault.tensors} | headers.lost
    expected, refused = _expected(manifest)
    faults += refused
    summed = manifest.logical if expected.tensors else weights_with_masters(manifest.logical)
    wanted = {n: x for n, x in summed.items() if n not in known}
    found = survey(manifest, budget, progress, wanted)
    untiled = {name for fault in faults if fault.kind in _NOT_TILED for name in fault.tensors}
    for stats in found:
        if not untiled.isdisjoint(stats.item.stored.layout.tensors):
            stats.matrices = ()  # rows that no chunk holds are not zero: they are nowhere
    more = after(progress, sum(stats.item.nbytes for stats in found) if progress else 0)
    of_content, meant = _content_faults(manifest, found, budget)
    faults += of_content
    faults += steps_that_disagree(found, manifest.entries)
    faults += masters_of_16_bits(found)
    faults += masters_that_differ(manifest, found, budget, more)
    faults += damaged_entries(manifest, headers.files)
    faults += unmapped_faults(manifest, budget)
    faults += contradicting_entries(manifest)
    faults += altered_files(manifest, budget)
    faults += undeclared(manifest)
    faults += declared_otherwise(manifest)
    faults += part_faults(manifest, known)
    told = known | {name for fault in of_content for name in fault.tensors}
    sizes = [*size_faults(manifest, found, told)]
    faults += sizes
    told = told.union(*(fault.tensors for fault in sizes))
    faults += owner_faults(manifest, told, budget.workers)
    damaged, trained = trainer_file_faults(manifest, budget)
    faults += damaged
    home = where if is_folder(where) else where.parent
    faults += map(fault_of, misleading(home, manifest.format))
    known |= {
        n for stats in found if stats.unread for s in stats.item.names for n in s.layout.tensors
    }
    faults += digest_faults(manifest, found, expected, known, budget, more)
    faults += object_faults(manifest, budget)
    compared, elements = surveyed(found)
    compared += sum(not x.size and x.name not in known for x in manifest.logical.values())
    notes = (*_notes(manifest, headers, found, faults), *trained, *notes_on_ends(manifest), *meant)
    named = manifest.format, manifest.family
    return Soundness(manifest.path, compared, elements, gathered(faults, manifest), notes, *named)


def _content_faults(
    manifest: Manifest, found: Sequence[ItemStats], budget: Budget
) -> tuple[list[Fault], Sequence[str]]:
    """What the numbers of tensors show, and notes on what was repeated on purpose."""
    weights = weights_among(found, manifest.quantised)
    judged = beside_scales_of_zero(found, manifest.quantised)
    with Content(manifest, budget) as content:
        content.look_at_zeros(found)
        faults = [
            fault
            for fault in content_faults(weights, format_named(manifest.format), content)
            if fault.kind != "zero-tensor" or not judged.issuperset(fault.tensors)
        ]
        faults += scale_faults(found, manifest.quantised)
        repeated = list(repeat_faults(weights, ties_for_sure(manifest), content))
    meant, repeated = made_by_copying(manifest.logical, repeated)
    return faults + repeated, meant


def _notes(
    manifest: Manifest, headers: Headers, found: Sequence[ItemStats], faults: Sequence[Fault]
) -> Iterator[str]:
    yield from manifest.notes
    yield from (x.text.partition("\n")[0] for x in manifest.problems if not x.kind)
    yield from headers.notes()
    yield from note_on_fewer_bits(manifest)
    yield from notes_on_layers_left_out(table_for(manifest.config), manifest.logical)
    yield from unread_sections(manifest.inventory)
    yield from unread_files(manifest.inventory, _holds_tensors(manifest))
    yield from links_to_nothing(manifest.inventory)
    yield from notes_of(found, faults)
    yield from notes_on_steps(found)


def _holds_tensors(manifest: Manifest) -> Callable[[str], bool]:
    """Whether a file has the name of one that holds tensors of such a checkpoint."""
    kind = format_named(manifest.format)
    return lambda file: kind.describes_itself(file) or kind.rank_of(file) is not None


def _expected(manifest: Manifest) -> tuple[Expected, list[Fault]]:
    """The digests that were stored, or why they cannot be used."""
    if manifest.config == NO_FAMILY:
        return Expected(), []  # digests go by the names of the family
    try:
        return digests_in(manifest), []
    except IntarsiaError as error:
        error.raise_unless_fault()
        return Expected(), [Fault(error.kind, (), DIGESTS, error.brief, hint=error.hint or "")]

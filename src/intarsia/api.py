"""What a Python program calls to look at checkpoints and to check them: open, verify, digest, diff."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, overload

from intarsia.checkpoint import Checkpoint
from intarsia.collector import seldom
from intarsia.errors import ForeignNamesError, SectionError, check_flags
from intarsia.format.naming.section import TOP
from intarsia.format.registry import format_named, read_manifest, sections_in
from intarsia.options import ConfigLike, PathLike, SectionLike
from intarsia.planning.inventory import unread_sections
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress
from intarsia.run.ranks.crew import Crew, agree, crew
from intarsia.store.reading.headers_once import reading_once
from intarsia.store.reading.lookup import given
from intarsia.store.reading.replaced import unreplaced
from intarsia.store.stamp import Stamp

if TYPE_CHECKING:
    from intarsia.checking.alone.soundness import Soundness
    from intarsia.checking.digests.digest import Digests
    from intarsia.checking.pair.change import Changes
    from intarsia.checking.pair.comparison import Comparison


def open(path: PathLike, config: ConfigLike = None, section: SectionLike = None) -> Checkpoint:
    """Open a checkpoint of any format; only its headers are read.

    `section` names the model where a checkpoint holds several.
    """
    return Checkpoint(read_manifest(path, config, section=section))


@overload
def verify(
    a: PathLike,
    b: None = None,
    *,
    config: ConfigLike = ...,
    section: SectionLike = ...,
    memory: str | int | None = ...,
    workers: int | None = ...,
    progress: Progress | None = ...,
) -> Soundness: ...


@overload
def verify(
    a: PathLike,
    b: PathLike,
    *,
    config: ConfigLike = ...,
    section: SectionLike = ...,
    memory: str | int | None = ...,
    workers: int | None = ...,
    progress: Progress | None = ...,
) -> Comparison: ...


@seldom()
def verify(
    a: PathLike,
    b: PathLike | None = None,
    *,
    config: ConfigLike = None,
    section: SectionLike = None,
    memory: str | int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Soundness | Comparison:
    """Whether two checkpoints hold the same weights, bit by bit, whatever their formats.

    Given one, whether it is sound: whole, readable, true to its checksums, free of known faults.
    `section` names the model where A holds several; it is B's too where B holds one of that name.
    """
    if b is None:
        from intarsia.checking.alone.soundness import examine

        return examine(a, config, Budget.of(memory, workers), progress, section)
    from intarsia.checking.pair.compare import compare

    with reading_once(), unreplaced(given(a), given(b)) as check:
        left, right, notes = open_pair(a, b, config, section)
        with left, right:
            found = compare(left, right, Budget.of(memory, workers), progress)
            unread = (x for side in (left, right) for x in unread_sections(side.manifest.inventory))
        if not found:
            check()
        return replace(found, notes=(*notes, *found.notes, *unread))


@seldom()
def digest(
    path: PathLike,
    *,
    secure: bool = False,
    config: ConfigLike = None,
    section: SectionLike = None,
    memory: str | int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    alone: bool = False,
) -> Digests:
    """The digest of each logical tensor: equal for every format and layout of the same weights.

    The ranks of a `torchrun` job share the work, unless one is to do it `alone`.
    """
    check_flags(secure=secure, alone=alone)
    with crew(alone=alone) as team:
        budget = Budget.of(memory, workers)
        return digest_with(team, path, config, budget, progress, secure=secure, section=section)


def digest_with(
    team: Crew,
    path: PathLike,
    config: ConfigLike,
    budget: Budget,
    progress: Progress | None = None,
    *,
    secure: bool = False,
    section: SectionLike = None,
) -> Digests:
    """The digests of a checkpoint, by ranks that read the same one."""
    from intarsia.checking.digests.digest import digests_of, objects_of
    from intarsia.checking.digests.digest_notes import notes_on

    with team.together():
        checkpoint = open(path, config, section)
    with checkpoint:
        facts = {f"source file {f}": str(Stamp(*s)) for f, s in checkpoint.manifest.stamps.items()}
        agree(team, facts | {"--secure": str(secure), "--memory, --workers": str(budget)})
        found = digests_of(checkpoint, budget, progress, secure=secure, team=team)
        with team.together():
            objects = objects_of(checkpoint.manifest, budget)
            notes = tuple(notes_on(checkpoint.manifest, found))
        return replace(found, objects=objects, notes=notes)


@seldom()
def diff(
    a: PathLike,
    b: PathLike,
    *,
    config: ConfigLike = None,
    section: SectionLike = None,
    memory: str | int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Changes:
    """How much each tensor changed between two checkpoints of one model, the furthest first."""
    from intarsia.checking.pair.change import changes

    left, right, notes = open_pair(a, b, config, section)
    with left, right:
        found = changes(left, right, Budget.of(memory, workers), progress)
        return replace(found, notes=(*notes, *found.notes))


@reading_once()
def open_pair(
    a: PathLike, b: PathLike, config: ConfigLike, section: SectionLike = None
) -> tuple[Checkpoint, Checkpoint, tuple[str, ...]]:
    """Two checkpoints under the same names, and what is said of which they are and how they are named.

    One lends the other its model configuration where that has none of its own.  A section is A's, and
    B's too where B has one of that name.
    """
    from intarsia.checking.pair.hub_names import in_one_spelling

    left, right = open(a, config, section), _other(b, config, section)
    with suppress(ForeignNamesError):  # another model, compared name by name
        if _lacks_config(left) and not _lacks_config(right):
            left = open(a, right.config, section)
        elif _lacks_config(right) and not _lacks_config(left):
            right = _other(b, left.config, section)
    chosen = [
        f"{side}: {note}"
        for side, opened in (("A", left), ("B", right))
        for note in opened.manifest.chosen
    ]
    one, other, notes = in_one_spelling(left.manifest, right.manifest)
    if notes:
        left, right = Checkpoint(one), Checkpoint(other)
    return left, right, (*chosen, *notes)


def _other(path: PathLike, config: ConfigLike, section: SectionLike) -> Checkpoint:
    """B, by the section of A where it has one of that name; whole where A is."""
    wanted = [name.strip(".") or TOP for name in sections_in(section)]
    try:
        found = open(path, config)
    except SectionError:
        if not wanted:
            raise
        return open(path, config, section)
    held = {item.name for item in found.manifest.inventory if item.kind == "section"}
    whole = TOP in wanted and format_named(found.manifest.format).keeps_names
    if not wanted or not (whole or held.issuperset(wanted)):
        return found
    found.close()
    return open(path, config, section)


def _lacks_config(checkpoint: Checkpoint) -> bool:
    return checkpoint.config is None or checkpoint.manifest.config_made

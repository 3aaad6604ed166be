"""Where a conversion begins: at the start, or where an earlier run of the same job was killed."""

from __future__ import annotations

from pathlib import PurePath

from intarsia.conversion.job import Job
from intarsia.errors import (
    CoverageError,
    FormatError,
    IntarsiaError,
    PrecisionError,
    UsageError,
)
from intarsia.format.base import Arrangement
from intarsia.quantity import human
from intarsia.run.journal import Facts, Found, Journal
from intarsia.store.folder import Folder
from intarsia.store.local.staging import Staging
from intarsia.store.lookup import exists, stamp_of
from intarsia.store.store_staging import StoreStaging
from intarsia.store.writer import Writer


def begin(
    job: Job,
    staging: Writer,
    arrangement: Arrangement,
    journal: Journal | None,
    facts: Facts,
    *,
    resume: bool,
) -> tuple[bool, list[str]]:
    """Claim the destination and make its files: whether it is whole already, and what to say."""
    staging.claim()
    found = journal.find() if journal else None
    if journal and resume and found is not None:
        here = journal.staging
        if _was_committed(found, here, arrangement):
            _check_same(found, facts, here)
            told = "an earlier run had finished; only its leftovers were removed"
            return True, [told, *here.settle_down()]
        if _is_there(found, here):
            _check_same(found, facts, here)
            here.check()
            return False, [_go_on(job, here, arrangement, journal, facts, found)]
    staging.check(resume=resume)
    notes = list[str]()
    if journal:
        here = journal.staging
        notes = _useless(found, here) if resume else _lost(found, facts, here, journal)
    staging.clear()
    staging.check_room(_need(arrangement))
    for file, size in arrangement.files.items():
        staging.create(file, size)
    if journal:
        journal.begin(facts)
    return False, notes


def _go_on(
    job: Job,
    staging: Staging,
    arrangement: Arrangement,
    journal: Journal,
    facts: Facts,
    found: Found,
) -> str:
    """Take up what is proven of an earlier run; what is said of it."""
    staging.check_links()
    done = journal.prove(found, arrangement, job.budget.workers)
    damaged = sum(part.nbytes for part in journal.read(found)) - done.nbytes
    staging.check_room(max(0, _need(arrangement) - staging.taken_bytes))
    for file, size in arrangement.files.items():
        staging.create(file, size, keep=True)
    staging.files.sync_data(created=True)
    staging.sync_names()
    journal.begin(facts, done, found.generation + 1)
    wrong = f"; {human(damaged)} did not match what had been written, and are written again"
    return f"resumed: {human(done.nbytes)} were there already{wrong if damaged else ''}"


def keep_what_is_proven(job: Job, staging: Writer, error: BaseException) -> None:
    """After a failure: leave what a later run can take up, and say so; clear the rest."""
    if not staging.owned or isinstance(error, UsageError):
        staging.abandon(keep=True)
        return
    if staging.committed:
        staging.abandon(keep=True)
        _add_hint(error, "run again with --resume to check")
        return
    void = isinstance(error, FormatError | CoverageError | PrecisionError)
    if isinstance(staging, StoreStaging) or void or staging.is_broken(error):
        kept = 0
    else:
        kept = _kept(job, staging)
    if not staging.abandon(keep=kept > 0):
        return
    _add_hint(
        error,
        f"{human(kept)} of {human(job.plan.write_bytes)} are kept in {staging.folder}:"
        " run again with --resume",
    )


def _add_hint(error: BaseException, text: str) -> None:
    if isinstance(error, IntarsiaError):
        error.hint = f"{error.hint}; {text}" if error.hint else text
    else:
        error.add_note(text)


def _kept(job: Job, staging: Staging) -> int:
    """How many bytes a later run could take up."""
    journal = Journal(staging, job.wanted.targets)
    try:
        job.stamps.check()
        found = journal.find()
        if found is None or not _is_there(found, staging):
            return 0
        return sum(part.nbytes for part in journal.read(found))
    except (IntarsiaError, OSError):
        return 0


def _useless(found: Found | None, staging: Staging) -> list[str]:
    """What is said where a run was to be continued and cannot be."""
    if found is not None:
        return [
            "started again: the files that the journal of an earlier run lists are gone from"
            f" {staging.folder}"
        ]
    if exists(staging.journal) or exists(staging.folder):
        return ["started again: an earlier run left no readable journal"]
    return []


def _lost(found: Found | None, facts: Facts, staging: Staging, journal: Journal) -> list[str]:
    """What is said where a run that could be continued is not."""
    if found is None or found.differences(facts) or not _is_there(found, staging):
        return []
    nbytes = sum(part.nbytes for part in journal.read(found))
    if not nbytes:
        return []
    return [f"{human(nbytes)} of an earlier run were removed; --resume would have kept them"]


def _check_same(found: Found, facts: Facts, staging: Staging) -> None:
    differences = found.differences(facts)
    if differences:
        shown = "\n".join(f"  {text}" for text in differences[:8])
        more = f"\n  … and {len(differences) - 8} more" if len(differences) > 8 else ""
        raise UsageError(
            f"{staging.destination} was started by another job, which cannot be resumed as this one:"
            f"\n{shown}{more}",
            hint="give the source and the options of the first run, or start again without"
            f" --resume (which removes {staging.folder})",
        )


def _is_there(found: Found, staging: Staging) -> bool:
    """Whether the folder that a journal names is still the one that is being written."""
    return exists(staging.folder) and _number(staging.folder) == found.folder


def _was_committed(found: Found, staging: Staging, arrangement: Arrangement) -> bool:
    """Whether that folder is the destination by now: its number, which may be another's since, and its files."""
    if not exists(staging.destination) or _number(staging.destination) != found.folder:
        return False
    with Folder(staging.destination) as folder:
        return all(
            folder.has(file) and folder.size(file) == size
            for file, size in arrangement.files.items()
        ) and all(
            folder.has(file) and folder.read_all(file) == data
            for file, data in arrangement.closing.items()
        )


def _number(folder: PurePath) -> int:
    """A folder's number in its file system."""
    return stamp_of(folder).inode


def _need(arrangement: Arrangement) -> int:
    return sum(arrangement.files.values()) + sum(map(len, arrangement.closing.values()))

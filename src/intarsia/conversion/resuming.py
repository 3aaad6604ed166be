"""Where a conversion begins: at the start, or where an earlier run of the same job was killed."""

from __future__ import annotations

from intarsia.conversion.job import Job
from intarsia.errors import (
    CoverageError,
    FormatError,
    IntarsiaError,
    PrecisionError,
    UsageError,
    add_hint,
    few_lines,
)
from intarsia.format.base import Arrangement
from intarsia.quantity import human
from intarsia.run.journal.keeping import EarlierJournal, Facts, Journal
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import exists
from intarsia.store.writing.staging import Staging


def begin(
    job: Job, arrangement: Arrangement, journal: Journal, facts: Facts, *, resume: bool
) -> tuple[bool, list[str]]:
    """Claim the destination and make its files: whether it is whole already, and what to say."""
    staging = journal.staging
    staging.claim()
    found = journal.find()
    if resume and found is not None:
        if _was_committed(found, staging, arrangement):
            _check_same(found, facts, staging)
            staging.number = found.folder
            finished = "an earlier run had finished; only its leftovers were removed"
            return True, [finished, *staging.settle_down()]
        if _is_there(found, staging):
            _check_same(found, facts, staging)
            staging.check()
            return False, [_go_on(job, staging, arrangement, journal, facts, found)]
    staging.check(resume=resume)
    notes = _useless(found, staging) if resume else _lost(found, facts, staging, journal)
    staging.clear()
    staging.check_room(_need(arrangement))
    for file, size in arrangement.files.items():
        staging.create(file, size)
    journal.begin(facts)
    return False, notes


def _go_on(
    job: Job,
    staging: Staging,
    arrangement: Arrangement,
    journal: Journal,
    facts: Facts,
    found: EarlierJournal,
) -> str:
    """Take up what is proven of an earlier run; what is said of it."""
    staging.transaction.check_left()
    done = journal.prove(found, arrangement, job.budget.workers)
    damaged = sum(part.nbytes for part in journal.read(found)) - done.nbytes
    staging.check_room(_need(arrangement), resumed=True)
    for file, size in arrangement.files.items():
        staging.create(file, size, keep=True)
    staging.flush(created=True)
    journal.begin(facts, done, found.generation + 1)
    wrong = f"; {human(damaged)} did not match what had been written, and are written again"
    return f"resumed: {human(done.nbytes)} were there already{wrong if damaged else ''}"


def keep_what_is_proven(job: Job, staging: Staging, error: BaseException) -> None:
    """After a failure: leave what a later run can take up, and say so; clear the rest."""
    if staging.committed:
        staging.abandon(keep=True)
        add_hint(error, staging.in_place)
        if exists(staging.journal):
            add_hint(error, "run again with --resume to check")
        return
    if not staging.owned or isinstance(error, UsageError):
        staging.abandon(keep=True)
        return
    void = isinstance(error, FormatError | CoverageError | PrecisionError)
    kept = 0 if void or staging.is_broken(error) else _kept(job, staging)
    if not staging.abandon(keep=kept > 0):
        return
    add_hint(
        error,
        f"{human(kept)} of {human(job.plan.write_bytes)} are kept in {staging.folder}:"
        " run again with --resume",
    )


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


def _useless(found: EarlierJournal | None, staging: Staging) -> list[str]:
    """What is said where a run was to be continued and cannot be."""
    if found is not None:
        return [
            "started again: the files that the journal of an earlier run lists are gone from"
            f" {staging.folder}"
        ]
    if exists(staging.journal) or exists(staging.folder):
        return ["started again: an earlier run left no readable journal"]
    return []


def _lost(
    found: EarlierJournal | None, facts: Facts, staging: Staging, journal: Journal
) -> list[str]:
    """What is said where a run that could be continued is not."""
    if found is None or found.differences(facts) or not _is_there(found, staging):
        return []
    nbytes = sum(part.nbytes for part in journal.read(found))
    if not nbytes:
        return []
    return [f"{human(nbytes)} of an earlier run were removed; --resume would have kept them"]


def _check_same(found: EarlierJournal, facts: Facts, staging: Staging) -> None:
    differences = found.differences(facts)
    if differences:
        raise UsageError(
            f"{staging.destination} was started by another job, which cannot be resumed as this one:"
            f"{few_lines(differences)}",
            hint="give the source and the options of the first run, or start again without"
            f" --resume (which removes {staging.folder})",
        )


def _is_there(found: EarlierJournal, staging: Staging) -> bool:
    """Whether the folder that a journal names is still the one that is being written."""
    return staging.number_of(staging.folder) == found.folder


def _was_committed(found: EarlierJournal, staging: Staging, arrangement: Arrangement) -> bool:
    """Whether that folder is the destination by now: its number, which may be another's since, and its files."""
    if staging.number_of(staging.destination) != found.folder:
        return False
    with Folder(staging.destination) as folder:
        return all(
            folder.has(file) and folder.size(file) == size
            for file, size in arrangement.files.items()
        ) and all(
            folder.has(file) and folder.read_all(file) == data
            for file, data in arrangement.closing.items()
        )


def _need(arrangement: Arrangement) -> int:
    return sum(arrangement.files.values()) + sum(map(len, arrangement.closing.values()))

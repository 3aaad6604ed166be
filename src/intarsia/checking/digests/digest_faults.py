"""A checkpoint compared with the digests that are stored in it, by the sums that were taken on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from intarsia.checking.digests.digest import (
    digest_of,
    digests_of,
    mismatches,
    objects_of,
    stored_digests,
)
from intarsia.checking.digests.own_reading import Expected, expected_of
from intarsia.checking.fault import Fault
from intarsia.checking.pair.ties import tied_and_absent
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError, FormatError, IntarsiaError, few
from intarsia.format.folder.side_files import DIGESTS
from intarsia.format.registry import format_named
from intarsia.planning.manifest import Manifest
from intarsia.planning.problem import FILE_LOST
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress
from intarsia.run.sums.hashing import Sum, merged_sums
from intarsia.state.names import is_state
from intarsia.store.address import named
from intarsia.store.reading.lookup import is_folder


def digests_in(manifest: Manifest) -> Expected:
    """The digests that were stored of a checkpoint's tensors; none where there are none.

    One file that is named alone has those of its folder, where it is the folder's only one.
    """
    path = named(manifest.path)
    if is_folder(path):
        return expected_of(manifest, stored_digests(manifest))
    home = path.parent
    if not format_named(manifest.format).is_alone(path):
        return Expected()
    at_home = replace(manifest, path=str(home))
    expected = expected_of(at_home, stored_digests(at_home))
    # The state of the optimizer lies in a folder of its own, which is not asked about.
    asked = {n: d for n, d in expected.tensors.items() if n in manifest.logical or not is_state(n)}
    return replace(expected, tensors=asked)


def object_faults(manifest: Manifest, budget: Budget) -> Iterator[Fault]:
    """Objects that are not those whose digests were stored: changed, emptied, deleted, added."""
    try:
        if not is_folder(named(manifest.path)):
            return
        expected = expected_of(manifest, stored_digests(manifest))
        if not expected.objects:
            return
        held = objects_of(manifest, budget)
        if expected.own is not None:
            held = {n: x for n, x in held.items() if n in expected.objects}
        lost = [problem for problem in manifest.problems if problem.kind == FILE_LOST]
        known = {name for problem in lost for name in problem.tensors}
        asked = {n: x for n, x in expected.objects.items() if n not in known}
        wrong = mismatches(asked, {n: x for n, x in held.items() if n not in known})
    except (FormatError, CoverageError):
        return  # reported by whoever reads the digests, or the objects
    if wrong:
        names = tuple(each.name for each in wrong)
        gone = [each.name for each in wrong if not each.found]
        text = f"{len(names):,} objects are not those whose digests were stored: {few(names)}"
        text += f"; absent: {few(gone)}" if gone else ""
        yield Fault("digest-differs", names, DIGESTS, text)


def digest_faults(
    manifest: Manifest,
    found: Sequence[ItemStats],
    expected: Expected,
    known: Set[str],
    budget: Budget,
    progress: Progress | None = None,
) -> Iterator[Fault]:
    """Tensors that are not those whose digests were stored; tensors in `known` are reported as faulty already."""
    if not expected.tensors and not expected.apart:
        return
    totals = merged_sums(stats.sums for stats in found)
    taken: dict[str, str] = {}
    rest: list[str] = []
    for name, x in manifest.logical.items():
        total = totals.get(name, Sum())
        if name in known or name in expected.divided:
            continue
        if total.count_bytes == x.nbytes:
            taken[name] = digest_of(x, total)
        else:
            rest.append(name)
    if rest:
        try:
            with Checkpoint(manifest) as checkpoint:
                taken |= digests_of(checkpoint, budget, progress, names=rest).tensors
        except IntarsiaError as error:
            error.raise_unless_fault()
            text = f"the digests of {few(rest)} cannot be taken: {error.brief}"
            yield Fault(error.kind, tuple(rest), DIGESTS, text)
            known = {*known, *rest}
    # What is tied and not stored has the digest of the tensor that it is tied to, where the file has that.
    taken |= {
        n: taken[x.name]
        for n, x in tied_and_absent(manifest).items()
        if n in expected.tensors and x.name in taken
    }
    asked = {n: d for n, d in expected.tensors.items() if n not in known}
    wrong = mismatches(asked, taken)
    if expected.own is not None and expected.apart and known.isdisjoint(expected.divided):
        with Checkpoint(expected.own) as checkpoint:
            apart = digests_of(checkpoint, budget, progress, names=expected.apart).tensors
        wrong += mismatches(expected.apart, apart)
    if not wrong:
        return
    names = tuple(each.name for each in wrong)
    first = wrong[0]
    text = (
        f"{len(names):,} tensors are not those whose digests were stored: {few(names)};"
        f" {first.expected or 'nothing'} was stored of {first.name}, {first.found or 'nothing'} found"
    )
    elements = sum(manifest.logical[n].size for n in names if n in manifest.logical)
    yield Fault("digest-differs", names, few(manifest.files_of(names)) or DIGESTS, text, elements)

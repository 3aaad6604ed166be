"""The digests of what a conversion writes, from the sums that were taken on the way.

They are compared with the source's own digests: what was neither cast nor rounded has the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from intarsia.checking.digests.digest import (
    QUICK,
    Attested,
    Digests,
    digest_of,
    digests_of,
    mismatches,
    objects_of,
    stored_digests,
    with_tied,
)
from intarsia.checking.digests.own_reading import expected_of
from intarsia.checking.pair.ties import tied_and_absent
from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError, few_lines
from intarsia.format.base import Arrangement
from intarsia.format.folder.side_files import DIGESTS
from intarsia.frozen import frozen_open
from intarsia.layout import renaming
from intarsia.planning.chunks import first_place
from intarsia.planning.manifest import Manifest, Target
from intarsia.run.budget import Budget
from intarsia.run.ranks.crew import Crew
from intarsia.run.sums.hashing import Sum, merged_sums
from intarsia.run.windows.tally import Sums

_NONE = Sum()


@frozen_open
class Work:
    """What a conversion wrote: targets, their places, their sums, and those that a shift rounded."""

    targets: Sequence[Target]
    arrangement: Arrangement
    sums: Sums
    rounded: Collection[str]

    def by_name(self) -> dict[str, Sum]:
        """The sums under the names that the targets have for what they hold."""
        return merged_sums({name: part} for (_, name), part in self.sums.items())

    def by_place(self, written: Manifest) -> dict[str, Sum]:
        """The sums under the names that a reader has for what lies at a target's place.

        A tied weight and a main weight are read under names that no target has.
        """
        at = {self._place(t.name): t for t in self.targets if self.arrangement.slots.get(t.name)}
        found: list[dict[str, Sum]] = []
        for stored in written.stored.values():
            place = first_place(stored.chunks)
            target = None if place is None else at.get(place)
            if target is not None:
                names = renaming(stored.layout, target.layout) or {}
                found.append({n: self.sums.get((target.name, m), Sum()) for n, m in names.items()})
        return merged_sums(found)

    def _place(self, target: str) -> tuple[str, int]:
        """Where a reader finds the first chunk of a target."""
        slots = self.arrangement.columns[target]
        names, files, starts, _ = slots.places
        wrapping = slots.wrapped.wrappings[0]
        before = 0 if wrapping is None else wrapping.start_bytes
        file = names[files[slots.first]].removeprefix(self.arrangement.home)
        return file, int(starts[slots.first]) - before


def attest(written: Manifest, work: Work, src: Manifest, budget: Budget) -> Attested:
    """The digests of what was written; raise where the source's digests promise something else.

    `written` is the destination as a reader finds it; the few tensors of it that a writer makes
    by itself (counters of steps) are read back.
    """
    found: dict[str, str] = {}
    for sums_of in (partial(work.by_place, written), work.by_name):
        if rest := [name for name in written.logical if name not in found]:
            sums = sums_of()
            for name in rest:
                x, total = written.logical[name], sums.get(name, _NONE)
                if total.count_bytes == x.nbytes:
                    found[name] = digest_of(x, total)
    if rest := [name for name in written.logical if name not in found]:
        with Checkpoint(written) as checkpoint:
            found |= digests_of(checkpoint, budget, names=rest, team=Crew()).tensors
    found = {name: found[name] for name in written.logical}
    found = with_tied(found, tied_and_absent(written))
    digests = Digests(QUICK, found, objects_of(written, budget))
    promised = stored_digests(src)
    if promised is None:
        return Attested(digests)
    rounded = {name for target, name in work.sums if target in work.rounded}
    _check(expected_of(src, promised).tensors, found, written, src, rounded)
    return Attested(digests, promised.digests.root_of_all)


def _check(
    promised: Mapping[str, str],
    found: Mapping[str, str],
    written: Manifest,
    src: Manifest,
    rounded: Collection[str],
) -> None:
    """Raise where a tensor that is neither cast nor rounded is not what the source's digests say."""
    same = {
        name: digest
        for name, digest in promised.items()
        if name in found
        and name in src.logical
        and name in written.logical
        and src.logical[name].dtype == written.logical[name].dtype
        and name not in rounded
    }
    wrong = mismatches(same, {name: found[name] for name in same})
    if wrong:
        texts = [f"`{m.name}`: {m.expected} promised, {m.found} read" for m in wrong]
        raise CoverageError(
            f"{len(wrong)} of {len(same)} tensors are not what the digests of {src.path}"
            f" say{few_lines(texts)}",
            hint="the source is damaged: restore it; if it was changed on purpose, remove its"
            f" {DIGESTS}; nothing was committed",
        )


def digests_file(arrangement: Arrangement) -> str:
    """Where the file of digests goes: into the folder that a reader takes for the checkpoint."""
    return arrangement.home + DIGESTS

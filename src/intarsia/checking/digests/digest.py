"""Digests of logical tensors: the same for every format, mesh, fusion and split of the same weights.

The quick kind (`pages`) adds up over parts, so bytes are summed where they lie, in any order, by
threads and ranks.  The secure kind (`sha256`) resists an adversary and reads each tensor in order.
`design/0006-digests.md` says what each promises.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from intarsia.checking.pair.ties import tied_and_absent
from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError, FormatError
from intarsia.format.folder.side_files import DIGESTS
from intarsia.format.registry import folder_of
from intarsia.format.strict_json import parse_json
from intarsia.frozen import frozen, frozen_open
from intarsia.mesh import Shape
from intarsia.opened.entries import each_entry
from intarsia.planning.manifest import Logical, Manifest
from intarsia.planning.proof import Proven
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.planning.window import windows
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress
from intarsia.run.ranks.crew import Crew, agree
from intarsia.run.sharing import share_out
from intarsia.run.sums.hashing import Sum, merged_sums
from intarsia.state.names import MASTER, kind_of, parameter_of, state_among
from intarsia.store.address import named
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import exists

if TYPE_CHECKING:
    from intarsia.checking.digests.digest_steps import Step

QUICK, SECURE = "pages", "sha256"
_REMOVE = f"restore the file, or remove {DIGESTS} to do without digests"


@frozen_open
class Digests:
    """The digest of each logical tensor, and the root over all of them."""

    kind: str
    tensors: Mapping[str, str]
    objects: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The SHA-256 of each object beside the tensors, which every format spells in its own way."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What a reader must know who compares the root with that of another checkpoint."""

    @property
    def root(self) -> str:
        """One digest for all names, element types, shapes and elements; a main weight counts where it is not the weight itself."""
        return self._over({n: x for n, x in self.tensors.items() if n not in self.weights_again})

    @property
    def root_of_all(self) -> str:
        """The digest of every line, as the file in a checkpoint has it."""
        return self._over(self.tensors)

    @cached_property
    def weights_again(self) -> frozenset[str]:
        """The main weights that are their weights, bit by bit: some formats and frameworks keep but one of the two.

        None where some are missing: a checkpoint that lost them is not one that never had any.
        """
        if not state_among(self.tensors):
            return frozenset()
        kinds: dict[str, set[str]] = {}
        for name in self.tensors:
            kinds.setdefault(kind_of(name), set()).add(name)
        mains = {parameter_of(n): n for n in kinds.pop(MASTER, ())}
        weights = kinds.pop("", set())
        stepped = {parameter_of(n) for n in set[str]().union(*kinds.values())} & weights or weights
        if not stepped <= mains.keys():
            return frozenset()
        found = (n for of, n in mains.items() if self.tensors.get(of) == self.tensors[n])
        return frozenset(found)

    def __str__(self) -> str:
        beside = {
            "main weights that are the weights themselves": len(self.weights_again),
            "objects": len(self.objects),
        }
        apart = " and ".join(f"{count:,} {what}" for what, count in beside.items() if count)
        count = len(self.tensors) - len(self.weights_again)
        return f"{self.root}  root of {count:,} tensors{apart and f'; {apart} are not in it'}"

    def _over(self, tensors: Mapping[str, str]) -> str:
        lines = [f"{name}\0{digest}\n" for name, digest in sorted(tensors.items())]
        return f"{self.kind}:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"

    def listed(self) -> dict[str, Any]:
        """What the file in a checkpoint lists, too."""
        return {
            "kind": self.kind,
            "tensors": dict(sorted(self.tensors.items())),
            "objects": dict(sorted(self.objects.items())),
        }

    def as_json(self) -> dict[str, Any]:
        return {"root": self.root, **self.listed(), "notes": list(self.notes)}


def objects_of(manifest: Manifest, budget: Budget) -> dict[str, str]:
    """The digest of each object beside the tensors, as its bytes are."""
    with folder_of(manifest) as folder:
        return {
            name: f"{SECURE}:{hashlib.sha256(data).hexdigest()}"
            for name, data in each_entry(manifest, folder, budget.memory_bytes)
        }


def digest_of(x: Logical | WholeTensor, total: Sum) -> str:
    """The quick digest of a tensor, from the sum of all of its bytes."""
    nbytes = x.nbytes
    if total.count_bytes != nbytes:
        raise CoverageError(f"{total.count_bytes:,} of {nbytes:,} bytes of `{x.name}` were summed")
    return _quick(_kind_of(x.dtype.name, x.shape), total.pages, total.crc)


def _quick(kind: str, pages: int, crc: int) -> str:
    text = f"{kind}{pages:016x}{crc:08x}"
    return f"{QUICK}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


@lru_cache(maxsize=1 << 10)
def _kind_of(dtype: str, shape: Shape) -> str:
    """A tensor's element type and shape, which belong to its digest."""
    return f"{dtype}[{','.join(map(str, shape))}]\0"


def digests_of(
    checkpoint: Checkpoint,
    budget: Budget,
    progress: Progress | None = None,
    *,
    secure: bool = False,
    names: Iterable[str] | None = None,
    team: Crew | None = None,
) -> Digests:
    """The digests of a checkpoint's tensors, or of those named; the ranks of a job share the work."""
    # A conversion makes digests from sums that it has taken.
    from intarsia.checking.digests.digest_steps import hash_of_steps, steps_over

    logical = checkpoint.manifest.logical
    wanted = logical if names is None else {name: logical[name] for name in names}
    twins = tied_and_absent(checkpoint.manifest) if names is None else {}
    team = team or Crew()
    with team.together():
        proofs = checkpoint.prover.tensors(wanted)
        steps = [] if secure else steps_over(checkpoint, proofs, wanted, budget)
    if team.size > 1:
        # Each takes every nth of them: of two lists one step would be done twice and another never.
        agree(team, {"the steps of the digest": hash_of_steps(steps)})
    with team.together() as shared:
        if secure:
            tensors = list(wanted.values())[team.rank :: team.size]
            hashes = share_out(
                tensors,
                budget.workers,
                lambda x: _hash(checkpoint, proofs[x.name], x, budget),
                progress=progress,
                nbytes=lambda x: x.nbytes,
            )
            shared.value = dict(zip((x.name for x in tensors), hashes, strict=True))
        else:
            shared.value = share_out(
                steps[team.rank :: team.size],
                budget.workers,
                lambda step: _summed(step, checkpoint, wanted, budget),
                progress=progress,
                nbytes=lambda step: step.nbytes,
            )
    if secure:
        found = {name: digest for part in shared.values for name, digest in part.items()}
        return Digests(SECURE, with_tied({name: found[name] for name in wanted}, twins))
    summed = [each for part in shared.values for each in part]
    total, nothing = merged_sums(each.parts for each in summed), Sum()
    done = {name: digest for each in summed for name, digest in each.whole.items()}
    if len(done) != sum(len(each.whole) for each in summed) or not total.keys().isdisjoint(done):
        raise CoverageError("a tensor was summed twice")
    found = {n: done.get(n) or digest_of(wanted[n], total.get(n, nothing)) for n in wanted}
    return Digests(QUICK, with_tied(found, twins))


@frozen
class _Summed:
    """What one step gives: the digests of tensors that are whole in it, and the sums of parts of others."""

    whole: Mapping[str, str]
    parts: Mapping[str, Sum]


def _summed(
    step: Step, checkpoint: Checkpoint, wanted: Mapping[str, Logical], budget: Budget
) -> _Summed:
    """The work of one step; digests are made here, while other threads sum."""
    from intarsia.checking.digests.bands import InBands
    from intarsia.checking.digests.step_kinds import RunsOfFile

    if isinstance(step, RunsOfFile) and (found := step.sums_in_file(checkpoint)) is not None:
        each = zip(step.tensors, found.pages, found.crcs, strict=True)
        return _Summed(
            {x.name: _quick(_kind_of(x.dtype.name, x.shape), *two) for x, *two in each}, {}
        )
    sums = step.sums(checkpoint, wanted, budget.digest_bytes)
    if not isinstance(step, (RunsOfFile, InBands)):
        return _Summed({}, sums)
    return _Summed({name: digest_of(wanted[name], x) for name, x in sums.items()}, {})


def with_tied(found: Mapping[str, str], twins: Mapping[str, Logical]) -> dict[str, str]:
    """The digests; a tensor that is tied and not stored has the digest of the tensor that it is tied to."""
    return {**found, **{name: found[x.name] for name, x in twins.items() if x.name in found}}


def _hash(checkpoint: Checkpoint, proven: Proven, x: Logical, budget: Budget) -> str:
    """The SHA-256 of a tensor's element type, its shape and its row-major bytes."""
    found = hashlib.sha256(_kind_of(x.dtype.name, x.shape).encode())
    for box in windows(x.shape, x.dtype.itemsize, budget.window_bytes):
        found.update(checkpoint.read_box(proven, box).data)
    return f"{SECURE}:{found.hexdigest()}"


@frozen_open
class Attested:
    """Digests as the file in a checkpoint has them, with the root of what it was made from.

        {"root": …, "from": the source's root, "kind": "pages", "tensors": {name: digest}}

    Every checkpoint that we write has the file, and other readers ignore it.  `files` are marks of
    the small files that were written with the tensors (under "files", where there are any); `section`
    is the one whose names these are (under "section", where one was asked for).
    """

    digests: Digests
    source: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    section: tuple[str, ...] = ()

    def as_bytes(self) -> bytes:
        document: dict[str, Any] = {"root": self.digests.root_of_all, "from": self.source}
        document |= {"files": dict(self.files)} if self.files else {}
        document |= {"section": list(self.section)} if self.section else {}
        document |= self.digests.listed()
        return (json.dumps(document, indent=1) + "\n").encode()


@frozen
class Mismatch:
    """A tensor that is not what the checkpoint's digests say.

    `found` is empty where the tensor is absent, `expected` where the digests do not know it.
    """

    name: str
    expected: str
    found: str


def stored_digests(manifest: Manifest) -> Attested | None:
    """The digests that lie in a checkpoint; None where there are none."""
    path = named(manifest.path) / DIGESTS
    if not exists(path):
        return None
    try:
        with Folder(path.parent) as folder:
            said = parse_json(folder.read_all(DIGESTS), str(path), hint=_REMOVE)
        tensors = {str(k): str(v) for k, v in said["tensors"].items()}
        files = {str(k): str(v) for k, v in said.get("files", {}).items()}
        objects = {str(k): str(v) for k, v in said.get("objects", {}).items()}
        section = tuple(map(str, said.get("section", ())))
        digests = Digests(str(said["kind"]), tensors, objects)
        found = Attested(digests, said["from"], files, section)
        root = said["root"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path} is no file of digests ({error})", hint=_REMOVE) from error
    if found.digests.kind != QUICK:
        raise FormatError(
            f"{path} holds digests of kind `{found.digests.kind}`; this version reads kind `{QUICK}`",
            hint=f"remove {DIGESTS} to do without digests, or use the version that wrote it",
        )
    if not tensors and manifest.logical:
        raise FormatError(f"{path} holds no digest, though tensors are stored", hint=_REMOVE)
    if found.digests.root_of_all != root:
        raise FormatError(
            f"{path} contradicts itself: the stored root is {root}, its tensors give"
            f" {found.digests.root_of_all}",
            hint=_REMOVE,
        )
    return found


def mismatches(expected: Mapping[str, str], found: Mapping[str, str]) -> list[Mismatch]:
    """Where two sets of digests differ."""
    both = {**expected, **found}
    pairs = [Mismatch(name, expected.get(name, ""), found.get(name, "")) for name in both]
    return [pair for pair in pairs if pair.expected != pair.found]

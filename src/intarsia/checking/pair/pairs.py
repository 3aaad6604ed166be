"""Tensors of two checkpoints that should be equal, read window by window."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from intarsia.checking.pair.other_forms import settings_by_parameter, steps_in_numbers
from intarsia.checking.pair.quantised_differently import QuantisedDifferently, quantised_differently
from intarsia.checking.pair.ties import tied_and_absent, tied_by_transformers
from intarsia.checkpoint import Checkpoint
from intarsia.family import table_for
from intarsia.format.registry import format_named
from intarsia.frozen import frozen
from intarsia.mesh import Box
from intarsia.opened.fewer_bits import fewer_bits, may_have_fewer_bits
from intarsia.opened.masters import has_own_master, recentred_norms
from intarsia.planning.manifest import Logical, Manifest
from intarsia.planning.window import windows
from intarsia.run.budget import Budget
from intarsia.run.room import Bytes, Room
from intarsia.state.names import MASTER, kind_of, parameter_of, state_among
from intarsia.value import PLAIN, Value


@frozen
class Pair:
    """One logical tensor of A and the one of B that should equal it.

    `rounded` says that the wider of the two is a main weight, of which the other is the rounded weight;
    a norm may have been rounded where it was centred on another value: as `recentred` stores it.
    `tied` is its name where one side stores it as the tensor that it is tied to, `of` where one side stores it
    with others, as a setting of all parameters of a group.
    """

    a: Logical
    b: Logical
    rounded: bool = False
    recentred: Value = PLAIN
    tied: str = ""
    of: str = ""

    @property
    def name(self) -> str:
        """What it is called: by its name in A, as the main weight that a weight of A stands for, or as what is tied."""
        is_main = kind_of(self.b.name) == MASTER and parameter_of(self.b.name) == self.a.name
        return self.tied or self.of or (self.b.name if is_main else self.a.name)

    @property
    def flipped(self) -> Pair:
        return replace(self, a=self.b, b=self.a)


@frozen
class Matched:
    """The pairs of two checkpoints, and what has no partner."""

    pairs: tuple[Pair, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    notes: tuple[str, ...]
    apart: QuantisedDifferently = QuantisedDifferently()


def match(a: Checkpoint, b: Checkpoint) -> Matched:
    """Pairs of equal names; a tied tensor that one side leaves out is the one that it is tied to.

    A main weight that lies in the place of the weight, as in some formats, is compared with the other
    side's main weight, and the weight of that side against it rounded.  A side that has no main
    weights and weights of fp32 trains those: they are what the other side's main weights should be.
    """
    table = table_for(a.config) or table_for(b.config)
    apart = quantised_differently(a.manifest, b.manifest, table)
    both = _Side.of("A", a, apart.a), _Side.of("B", b, apart.b)
    mains = _main_weights(a.manifest, b.manifest)
    norms = recentred_norms(a.config or b.config) if mains else {}
    left, right = (side.logical for side in both)
    pairs = [
        Pair(x, right[n], n in mains, norms.get(n, PLAIN)) for n, x in left.items() if n in right
    ]
    pairs, notes = _without_fewer_bits(pairs, a.manifest, b.manifest)
    turns = (both, both[::-1])
    near = [_tied_or_main(ours, theirs, mains) for ours, theirs in turns]
    pairs += _settings_of_groups(turns, near)
    far = [
        _tied_or_counted_elsewhere(ours, theirs, found.alone)
        for (ours, theirs), found in zip(turns, near, strict=True)
    ]
    pairs += [pair for found in (*near, *far) for pair in found.pairs]
    notes += [note for found in (*near, *far) for note in found.notes]
    for found, (ours, theirs) in reversed([*zip(near, turns, strict=True)]):
        if found.mains:
            notes.append(
                f"{found.mains} main weights of {ours.label} are compared with the weights of"
                f" {theirs.label}, which are fp32 and have none beside them"
            )
    only_in_a, only_in_b = (tuple(found.alone) for found in far)
    return Matched(tuple(pairs), only_in_a, only_in_b, tuple(notes), apart)


def _without_fewer_bits(
    pairs: list[Pair], a: Manifest, b: Manifest
) -> tuple[list[Pair], list[str]]:
    """The pairs but for weights that a run kept in fewer bits, where the other side has main weights in their place."""
    kept = [pair for pair in pairs if not (pair.rounded and may_have_fewer_bits(pair.a))]
    argument = (fewer_bits(a) or fewer_bits(b)) if len(kept) < len(pairs) else ""
    if not argument:
        return pairs, []
    note = (
        f"not compared: {len(pairs) - len(kept):,} weights that the run kept in fewer bits ({argument}), of which"
        " one side has the main weights alone; those are compared"
    )
    return kept, [note]


@frozen
class _Side:
    """One of two checkpoints: what of it is compared, and what it ties and does not store."""

    label: str
    checkpoint: Checkpoint
    logical: Mapping[str, Logical]
    tied: Mapping[str, Logical]

    @staticmethod
    def of(label: str, checkpoint: Checkpoint, without: Collection[str]) -> _Side:
        held = dict(checkpoint.manifest.logical.items())
        logical = {n: x for n, x in held.items() if n not in without} if without else held
        return _Side(label, checkpoint, logical, tied_and_absent(checkpoint.manifest))

    def pair(self, ours: Logical, theirs: Logical, tied: str = "", of: str = "") -> Pair:
        pair = Pair(ours, theirs, tied=tied, of=of)
        return pair if self.label == "A" else pair.flipped


@frozen
class _Partners:
    """What was found for tensors of one side that the other has no tensor of the same name for.

    Those that nothing was found for are `alone`; `mains` counts the main weights that are compared with weights.
    """

    pairs: list[Pair] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mains: int = 0


def _tied_or_main(ours: _Side, theirs: _Side, mains: Collection[str]) -> _Partners:
    """Partners of tensors that the other side ties to what it stores, and of main weights."""
    found, count = _Partners(), 0
    trains_weights = not _has_main_weights(theirs.logical)
    for name, x in ours.logical.items():
        if name in theirs.logical:
            continue
        if (twin := theirs.tied.get(name)) is not None:
            found.pairs.append(ours.pair(x, twin, tied=name))
            found.notes.append(
                f"`{name}` is tied and not stored in {theirs.label}; compared with `{twin.name}`"
            )
            continue
        if _is_weight_itself(ours.checkpoint.manifest, name):
            continue
        of = parameter_of(name) if kind_of(name) == MASTER else None
        weight = theirs.logical.get(of) if of is not None else None
        if weight and (of in mains or (trains_weights and _is_fp32(weight))):
            found.pairs.append(ours.pair(x, weight))
            count += of not in mains
        else:
            found.alone.append(name)
    return replace(found, mains=count)


def _settings_of_groups(
    turns: Iterable[tuple[_Side, _Side]], near: Sequence[_Partners]
) -> list[Pair]:
    """Pairs of settings that one side stores by group and the other by parameter; they are alone no more."""
    pairs: list[Pair] = []
    for (ours, theirs), mine, others in zip(turns, near, near[::-1], strict=True):
        found = [*settings_by_parameter(ours.checkpoint, mine.alone, others.alone)]
        pairs += [ours.pair(ours.logical[x], theirs.logical[y], of=y) for x, y in found]
        for partners, names in zip(
            (mine, others), ({x for x, _ in found}, {y for _, y in found}), strict=True
        ):
            partners.alone[:] = [name for name in partners.alone if name not in names]
    return pairs


def _tied_or_counted_elsewhere(ours: _Side, theirs: _Side, alone: Sequence[str]) -> _Partners:
    """Partners of tensors that Transformers ties, and of steps that are plain numbers there."""
    found, lacks = _Partners(), theirs.checkpoint
    config = lacks.config or ours.checkpoint.config
    known = tied_by_transformers(lacks.manifest, alone, config)
    for name, twin in known.items():
        found.pairs.append(ours.pair(ours.logical[name], twin, tied=name))
        found.notes.append(
            f"`{name}` is tied by Transformers and not stored in {theirs.label}; compared with"
            f" `{twin.name}`; the roots of their digests differ"
        )
    counted = steps_in_numbers(lacks, ours.checkpoint, alone)
    if counted:
        found.notes.append(
            f"the steps of {len(counted)} parameters are plain numbers in {theirs.label}, the same ones"
        )
    settled = {*known, *counted}
    found.alone.extend(name for name in alone if name not in settled)
    return found


def _main_weights(a: Manifest, b: Manifest) -> set[str]:
    """The weights in whose place one side keeps the main weight, which the other side has beside them."""
    found: set[str] = set()
    for main, other in ((a, b), (b, a)):
        if not format_named(main.format).main_weights_in_place:
            continue
        found |= {
            name
            for name, x in main.logical.items()
            if _is_fp32(x) and has_own_master(other, name) and name in other.logical
            if other.logical[name].dtype.itemsize < x.dtype.itemsize
        }
    return found


def _has_main_weights(logical: Mapping[str, Logical]) -> bool:
    return any(kind_of(name) == MASTER for name in state_among(logical))


def _is_fp32(x: Logical) -> bool:
    return x.dtype.name == "F32"


def _is_weight_itself(manifest: Manifest, name: str) -> bool:
    """Whether a main weight is a second name of the weight that is stored."""
    of = parameter_of(name)
    is_master = kind_of(name) == MASTER and of in manifest.logical
    return is_master and not has_own_master(manifest, of)


def read(checkpoint: Checkpoint, x: Logical, box: Box, room: Room | None = None) -> Bytes:
    """The bytes of a box of a logical tensor; in a `room` they last until it is used again."""
    return checkpoint.read_box(checkpoint.prover.tensor(x.name), box, room)


def read_windows(
    a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget
) -> Iterator[tuple[Box, Bytes, Bytes]]:
    """Both sides of a pair, one window at a time, each until the next."""
    rooms = Room(), Room()
    for box in windows_of_pair(pair, budget):
        yield box, read(a, pair.a, box, rooms[0]), read(b, pair.b, box, rooms[1])


def windows_of_pair(pair: Pair, budget: Budget) -> Iterator[Box]:
    """A pair cut into windows; both sides of a window are held at once."""
    return windows(pair.a.shape, widest(pair), budget.side_bytes)


def widest(pair: Pair) -> int:
    """The bytes of an element of the side that takes more."""
    return max(pair.a.dtype.itemsize, pair.b.dtype.itemsize)

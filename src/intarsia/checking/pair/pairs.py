"""Tensors of two checkpoints that should be equal, read window by window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from intarsia.checking.pair.group_steps import counted_by_groups
from intarsia.checking.pair.quantised_differently import QuantisedDifferently, quantised_differently
from intarsia.checking.pair.ties import tied_and_absent, tied_by_transformers
from intarsia.checkpoint import Checkpoint
from intarsia.family import table_for
from intarsia.format.registry import format_named
from intarsia.frozen import frozen
from intarsia.mesh import Box
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
    `tied` is its name where one side stores it as the tensor that it is tied to.
    """

    a: Logical
    b: Logical
    rounded: bool = False
    recentred: Value = PLAIN
    tied: str = ""

    @property
    def name(self) -> str:
        """What it is called: by its name in A, as the main weight that a weight of A stands for, or as what is tied."""
        is_main = kind_of(self.b.name) == MASTER and parameter_of(self.b.name) == self.a.name
        return self.tied or (self.b.name if is_main else self.a.name)

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
    left, right = a.manifest.logical, b.manifest.logical
    tied = {"A": tied_and_absent(a.manifest), "B": tied_and_absent(b.manifest)}
    mains = _main_weights(a.manifest, b.manifest)
    norms = recentred_norms(a.config or b.config) if mains else {}
    apart = quantised_differently(
        a.manifest, b.manifest, table_for(a.config) or table_for(b.config)
    )
    left, right = (
        {name: x for name, x in side.items() if name not in without}
        if without
        else dict(side.items())
        for side, without in ((left, apart.a), (right, apart.b))
    )
    pairs = [
        Pair(x, right[n], n in mains, norms.get(n, PLAIN)) for n, x in left.items() if n in right
    ]
    notes: list[str] = []
    only: list[list[str]] = [[], []]
    has_main = {"A": _has_main_weights(left), "B": _has_main_weights(right)}
    held_against = {"A": 0, "B": 0}
    for side, (ours, theirs, other) in enumerate(((left, right, "B"), (right, left, "A"))):
        for name, x in ours.items():
            if name in theirs:
                continue
            twin = tied[other].get(name)
            of = parameter_of(name) if twin is None and kind_of(name) == MASTER else None
            weight = theirs.get(of) if of is not None else None
            if twin is None and _is_weight_itself((a, b)[side].manifest, name):
                continue
            if weight and (of in mains or (not has_main[other] and _is_fp32(weight))):
                pairs.append(Pair(x, weight) if side == 0 else Pair(weight, x))
                held_against[other] += of not in mains
                continue
            if twin is None:
                only[side].append(name)
                continue
            pair = Pair(x, twin, tied=name)
            pairs.append(pair if side == 0 else pair.flipped)
            notes.append(f"`{name}` is tied and not stored in {other}; compared with `{twin.name}`")
    for side, (ours, lacks, other) in enumerate(((left, b, "B"), (right, a, "A"))):
        absent = [name for name in only[side] if name in ours]
        known = tied_by_transformers(lacks.manifest, absent, lacks.config or a.config or b.config)
        for name, twin in known.items():
            pair = Pair(ours[name], twin, tied=name)
            pairs.append(pair if side == 0 else pair.flipped)
            notes.append(
                f"`{name}` is tied by Transformers and not stored in {other}; compared with"
                f" `{twin.name}`; the roots of their digests differ"
            )
        counted = counted_by_groups(lacks, (a, b)[side], absent)
        if counted:
            notes.append(
                f"the parameter groups of {other} are at the steps of {len(counted)} parameters"
            )
        only[side] = [name for name in only[side] if name not in {*known, *counted}]
    notes += [
        f"{count} main weights of {'AB'.replace(other, '')} are compared with the weights of"
        f" {other}, which are fp32 and have none beside them"
        for other, count in held_against.items()
        if count
    ]
    return Matched(tuple(pairs), tuple(only[0]), tuple(only[1]), tuple(notes), apart)


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

"""What ranks report of their boxes before a save, and the task that the first rank gives each of them.

Ranks of one model mostly say the same: the names, types and shapes of their tensors, which of them are
cut alike, and the settings of the optimizer.  Of that common part all that say the same send one copy
between them, a slice each; only the boxes differ, a few for all tensors that are cut alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from intarsia.dtypes import BY_NAME
from intarsia.format.base import Slot
from intarsia.live.saving.parts import HeldBox, HeldPart
from intarsia.live.saving.replicas import Holders, is_unproven
from intarsia.mesh import Box, Shape
from intarsia.run.ranks.apart import message_of, value_of_message


@dataclass(frozen=True, slots=True)
class Heard:
    """What one rank holds, as the first rank puts it together."""

    boxes: list[HeldBox]
    entries: Mapping[str, bytes]
    extra: Mapping[str, bytes]
    config: Mapping[str, Any] | None
    nesting: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Statement:
    """What a rank has to say: what it has in common with others, its boxes, its extra values."""

    common: bytes
    boxes: list[tuple[Shape, Shape]]
    extra: Mapping[str, bytes]

    @staticmethod
    def of(
        parts: Sequence[tuple[HeldPart, tuple[int, ...]]],
        entries: Mapping[str, bytes],
        extra: Mapping[str, bytes],
        config: Mapping[str, Any] | None,
        nesting: Mapping[str, tuple[str, ...]],
    ) -> Statement:
        """`parts` are this rank's, each with the ranks whose DTensor says that they hold the same."""
        boxes: dict[tuple[Shape, Box], int] = {}
        proofs: dict[int, tuple[int, tuple[int, ...]]] = {}  # by identity: a proof names every rank
        shapes: dict[Shape, int] = {}
        above: dict[tuple[str, ...], int] = {}
        rows = [
            (
                part.name,
                part.dtype.name,
                shapes.setdefault(part.shape, len(shapes)),
                boxes.setdefault((part.shape, part.box), len(boxes)),
                proofs.setdefault(id(proof), (len(proofs), proof))[0],
                above.setdefault(nesting.get(part.name, ()), len(above)),
            )
            for part, proof in parts
        ]
        named = [proof for _, proof in proofs.values()]
        beside = {name: keys for name, keys in nesting.items() if name in extra}
        common = message_of((rows, [*shapes], named, [*above], dict(entries), config, beside))
        return Statement(common, [(box.offsets, box.shape) for _, box in boxes], extra)

    @property
    def digest(self) -> bytes:
        return blake2b(self.common, digest_size=16).digest()

    def said(self, digests: Sequence[bytes], rank: int) -> Statement:
        """The same with this rank's slice of what it has in common, where `digests` are those of all ranks."""
        same = [k for k, digest in enumerate(digests) if digest == digests[rank]]
        step = -(-len(self.common) // len(same))
        first = same.index(rank) * step
        return replace(self, common=self.common[first : first + step])


def heard(said: Sequence[Statement], digests: Sequence[bytes]) -> list[Heard]:
    """What every rank holds, from what all of them said."""
    slices: dict[bytes, list[bytes]] = {}
    for each, digest in zip(said, digests, strict=True):
        slices.setdefault(digest, []).append(each.common)
    common = {digest: value_of_message(b"".join(parts)) for digest, parts in slices.items()}
    known: dict[tuple[Shape, Shape], Box] = {}
    found = []
    for each, digest in zip(said, digests, strict=True):
        rows, shapes, proofs, above, entries, config, beside = common[digest]
        boxes = [known.setdefault(box, Box(*box)) for box in each.boxes]
        held = [
            HeldBox(name, BY_NAME[dtype], shapes[shape], boxes[box], proofs[proof])
            for name, dtype, shape, box, proof, _ in rows
        ]
        nesting = (
            {name: above[keys] for name, *_, keys in rows if above[keys]} if any(above) else {}
        )
        found.append(Heard(held, entries, each.extra, config, nesting | beside))
    return found


@dataclass(frozen=True, slots=True)
class RankTask:
    """What one rank is to do with its boxes, in their order: where to write each, or not; and which
    of them have replicas that no DTensor proves, so that checksums are compared."""

    slots: list[Slot | None]
    unproven: list[bool]
    file_bytes: int


def tasks_of(
    held: Sequence[Heard],
    holders: Holders,
    slots: Mapping[str, Sequence[Slot]],
    file_bytes: Sequence[int],
    files: Sequence[str],
) -> list[RankTask]:
    """The task of each rank; `files` are those that they write."""
    by_box = {name: {slot.box: slot for slot in found} for name, found in slots.items()}
    doubted = {
        name: {box for box, by in boxes.items() if is_unproven(by)}
        for name, boxes in holders.items()
    }
    tasks = []
    for each, file, nbytes in zip(held, files, file_bytes, strict=True):
        mine = [by_box[b.name][b.box] for b in each.boxes]
        written = [slot if slot.file == file else None for slot in mine]
        tasks.append(RankTask(written, [b.box in doubted[b.name] for b in each.boxes], nbytes))
    return tasks

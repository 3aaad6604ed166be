"""Who holds which box, and whether those who hold the same box hold the same.

Where one DTensor's mesh contains the ranks, that is the proof; where only a name says so, every
rank's checksum must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from intarsia.dtypes import DType
from intarsia.errors import CoverageError, LayoutError
from intarsia.live.saving.parts import HeldBox
from intarsia.mesh import Box, Shape
from intarsia.planning.proof import check_tiling

Key = tuple[str, Box]


Boxes = dict[Box, list[tuple[int, HeldBox]]]


Holders = dict[str, Boxes]
"""For each tensor its boxes, which make all of it, and who holds each."""


def holders_of(boxes_by_rank: Sequence[Sequence[HeldBox]]) -> Holders:
    """The ranks that hold each box; raise where boxes of one tensor contradict or do not tile it."""
    found: Holders = {}
    for rank, said in enumerate(boxes_by_rank):
        for each in said:
            held = found.setdefault(each.name, {}).setdefault(each.box, [])
            if held and held[-1][0] == rank and each.box.size:
                raise CoverageError(
                    f"rank {rank} holds {each.box} of `{each.name}` twice",
                    hint="give each tensor a name of its own",
                )
            held.append((rank, each))
    tiled = set[tuple[Shape, tuple[Box, ...]]]()
    for name, boxes in found.items():
        everyone = [pair for held in boxes.values() for pair in held]
        first_rank, first = everyone[0]
        for rank, each in everyone[1:]:
            if (each.shape, each.dtype) != (first.shape, first.dtype):
                raise LayoutError(
                    f"`{name}` is {first.dtype} {list(first.shape)} on rank {first_rank} and"
                    f" {each.dtype} {list(each.shape)} on rank {rank}",
                    hint="tensors of one name are one tensor: give pipeline stages names of their own,"
                    " and `shape=` to `DTensor.from_local`",
                )
        key = (first.shape, tuple(boxes))
        if key not in tiled:
            check_tiling(name, *key)
            tiled.add(key)
    return found


def dtype_and_shape(boxes: Mapping[Box, Sequence[tuple[int, HeldBox]]]) -> tuple[DType, Shape]:
    (_, first), *_ = next(iter(boxes.values()))
    return first.dtype, first.shape


def ranks_of(boxes: Mapping[Box, Sequence[tuple[int, HeldBox]]]) -> dict[Box, list[int]]:
    return {box: [rank for rank, _ in held] for box, held in boxes.items()}


def is_unproven(held: Sequence[tuple[int, HeldBox]]) -> bool:
    """Whether several ranks hold a box, and not one DTensor's mesh says that it is the same."""
    ranks = {rank for rank, _ in held}
    proofs = {id(each.proof): each.proof for _, each in held}.values()
    return len(ranks) > 1 and not all(ranks.issubset(proof) for proof in proofs)


def check_replicas(sums: Sequence[Mapping[Key, int]]) -> None:
    """Raise where ranks that should hold the same do not."""
    seen: dict[Key, tuple[int, int]] = {}
    for rank, found in enumerate(sums):
        for key, crc in found.items():
            first, known = seen.setdefault(key, (rank, crc))
            if known != crc:
                name, box = key
                raise CoverageError(
                    f"`{name}` {box} differs between rank {first} and rank {rank}, and no"
                    " DTensor says which rank owns it",
                    hint="make it equal on all ranks (torch.distributed.broadcast), or a DTensor whose placements"
                    " say how ranks differ, or give it a name of its own on each rank; of buffers that DDP"
                    " broadcasts, its first rank's are saved where the model is given in its wrapper; nothing was"
                    " committed",
                )

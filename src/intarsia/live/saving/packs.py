"""Small tensors of a GPU, copied to the host together: to start a copy takes longer than to copy 100 KB.

They are put one after another in memory of the GPU first, 64 MiB at a time, and that is copied as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

from intarsia.run.sharing import in_steps

if TYPE_CHECKING:
    import torch

SMALL_BYTES = 1 << 20
"""Larger tensors are copied by themselves."""
PACK_BYTES = 64 << 20
"""The most memory of the GPU that is taken for a pack."""
_TYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32")
"""Types of numbers that are put one after another as they are."""
_DEVICE = attrgetter("device")


@dataclass(frozen=True)
class Pack:
    """Tensors of one type and one GPU by their names, and memory of the host in which they follow each other."""

    names: tuple[str, ...]
    device: torch.device
    memory: torch.Tensor

    def parts(self, like: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Of its memory, the part of each tensor, in that one's shape."""
        at = 0
        for name in self.names:
            x = like[name]
            yield name, self.memory[at : at + x.numel()].view(x.shape)
            at += x.numel()

    @cached_property
    def members(self) -> frozenset[str]:
        return frozenset(self.names)

    def fits(self, memory: Mapping[str, torch.Tensor]) -> bool:
        """Whether it can take these tensors as they are now."""
        found = [x for name in self.names if (x := memory.get(name)) is not None]
        return (
            len(found) == len(self.names)
            and {*map(_DEVICE, found)} == {self.device}
            and {x.dtype for x in found} == {self.memory.dtype}
            and sum(x.numel() for x in found) == len(self.memory)
        )

    def take(self, tensors: list[torch.Tensor]) -> bool:
        """Start to copy tensors, in the order of the names; False where they are elsewhere now, or the GPU has no room."""
        import torch

        if {*map(_DEVICE, tensors)} != {self.device}:
            return False
        try:
            together = torch._C._nn.flatten_dense_tensors(tensors)
        except torch.OutOfMemoryError:
            return False
        self.memory.copy_(together, non_blocking=True)
        return True


def is_packed(x: torch.Tensor) -> bool:
    """Whether a tensor is copied with others."""
    return x.is_cuda and 0 < x.nbytes <= SMALL_BYTES and str(x.dtype).split(".")[1] in _TYPES


def packs_of(memory: Mapping[str, torch.Tensor], held: Sequence[Pack] = ()) -> list[Pack]:
    """The packs of the small tensors among these, in memory that is `held` where it is for the same."""
    import torch

    alike: dict[object, list[str]] = {}
    for name, x in memory.items():
        if is_packed(x):
            alike.setdefault((x.device, x.dtype), []).append(name)
    kept = {pack.names: pack for pack in held if pack.fits(memory)}
    found = list[Pack]()
    for some in alike.values():
        for names in map(tuple, in_steps(some, PACK_BYTES, lambda name: memory[name].nbytes)):
            first, count = memory[names[0]], sum(memory[name].numel() for name in names)
            if (pack := kept.get(names)) is None:
                room = torch.empty(count, dtype=first.dtype, device="cpu", pin_memory=first.is_cuda)
                pack = Pack(names, first.device, room)
            found.append(pack)
    return found

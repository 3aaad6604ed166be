"""Which wrappers a live model is in, by the classes of its modules: DDP, FSDP1, PEFT."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from torch.nn import DataParallel
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True, slots=True)
class Wrappers:
    """Whether a model has modules of each kind of wrapper."""

    data_parallel: bool
    fsdp1: bool
    peft: bool

    @staticmethod
    def of(model: Any) -> Wrappers:
        """One pass over the modules; of a thousand modules most have one of a few classes."""
        classes = _classes(model)
        kinds = is_data_parallel, _is_fsdp1, is_pefts
        return Wrappers(*(any(map(is_kind, classes)) for is_kind in kinds))


def _classes(model: Any) -> set[type]:
    """The classes of a model's modules; torch's own walk makes a name for each, which takes four times as long."""
    found, to_see, seen = set[type](), [model], set[int]()
    while to_see:
        each = to_see.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            found.add(type(each))
            to_see.extend(getattr(each, "_modules", {}).values())
    return found


def is_data_parallel(kind: type) -> bool:
    """Whether modules of a class are DDP or DataParallel."""
    return issubclass(kind, (DataParallel, DistributedDataParallel))


def is_pefts(kind: type) -> bool:
    """Whether modules of a class are of PEFT's making: `fully_shard` puts a class of its own before PEFT's."""
    return any(each.__module__.startswith("peft.") for each in kind.__mro__)


def _is_fsdp1(kind: type) -> bool:
    # It takes a second to import, and nothing is of it before.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and issubclass(kind, fsdp.FullyShardedDataParallel)

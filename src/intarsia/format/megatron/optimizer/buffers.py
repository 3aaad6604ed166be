"""The flat buffers of Megatron's distributed optimizers: their buckets, put together by the names of the tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import NamedTuple

from intarsia.errors import FormatError
from intarsia.format.dcp.metadata import TensorRecord
from intarsia.format.megatron.optimizer.state_tensors import state_kind
from intarsia.frozen import frozen_open

_BUCKET = re.compile(
    r"^(?:chained_(?P<link>\d{1,9})\.)?optimizer\.distributed\.dp_group_idx_(?P<group>\d{1,9})"
    r"\.gbuf_idx_(?P<buffer>\d{1,9})\.dtype_\(torch\.(?P<type>\w+), .*\)\.bucket_idx_(?P<bucket>\d{1,9})"
    r"\.(?P<kind>\w+)$"
)

GATHERED = re.compile(
    r"^(?:chained_\d{1,9}\.)?optimizer\.distributed\.dp_group_idx_\d{1,9}\.param_state/"
)
"""Objects that each hold all buffers of a rank: nothing in them says where a parameter begins."""


class BufferPlace(NamedTuple):
    """Where a buffer belongs: a rank of an optimizer, and which of its buffers of one type."""

    group: int
    chunk: int


Buffers = dict[BufferPlace, list["Bucket"]]
"""The buckets of every buffer of one optimizer that holds parameters of one element type."""


@frozen_open
class Bucket:
    """The flat tensors of one bucket by kind of state."""

    records: dict[str, TensorRecord] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return next(iter(self.records.values())).shape[0]

    @cached_property
    def cuts(self) -> set[int]:
        """Every place where a chunk begins or ends."""
        boxes = [c.box for c in next(iter(self.records.values())).chunks]
        return {b.offsets[0] for b in boxes} | {b.offsets[0] + b.shape[0] for b in boxes}


def is_bucket(name: str) -> bool:
    """Whether a stored tensor is a bucket of optimizer state."""
    return _BUCKET.match(name) is not None


def buffers_of(records: Sequence[TensorRecord]) -> dict[int, dict[str, Buffers]]:
    """The buffers of each optimizer of a chain, by the element type of their parameters."""
    listed: dict[tuple[int, str], dict[tuple[int, int], dict[int, Bucket]]] = {}
    for record in records:
        name = _BUCKET.match(record.name)
        assert name is not None
        if len(record.shape) != 1:
            raise FormatError(
                f"`{record.name}` has shape {list(record.shape)}, a bucket is flat",
                tensors=(record.name,),
            )
        buffers = listed.setdefault((int(name["link"] or 0), name["type"]), {})
        buckets = buffers.setdefault((int(name["group"]), int(name["buffer"])), {})
        bucket = buckets.setdefault(int(name["bucket"]), Bucket())
        bucket.records[state_kind(name["kind"])] = record
    found: dict[int, dict[str, Buffers]] = {}
    for (link, kind), buffers in listed.items():
        of_kind = found.setdefault(link, {}).setdefault(kind, {})
        seen: Counter[int] = Counter()
        for group, buffer in sorted(buffers):
            held = buffers[group, buffer]
            of_kind[BufferPlace(group, seen[group])] = [held[i] for i in sorted(held)]
            seen[group] += 1
    return found

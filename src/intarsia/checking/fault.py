"""A fault: something that a checkpoint should not have, or that two checkpoints do not share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

KINDS = {
    "bytes-overlap": "two tensors claim the same bytes of a file",
    "checksum-wrong": "a chunk's bytes are not those whose CRC-32 was recorded when it was saved",
    "chunk-mismatch": "a data file holds another element type or shape than the metadata says",
    "chunks-overlap": "two chunks hold the same elements of a tensor",
    "config-contradicts": "the tensors are not those of the model that the configuration describes",
    "digest-differs": "a tensor is not the one whose digest was stored",
    "dtype-implausible": "the numbers make sense only in another element type than the one stated",
    "dtype-mixed": "one layer's tensor is fp16 where the others' are bf16, or the other way round",
    "elements-missing": "no chunk holds some elements of a tensor, so a loader leaves old memory there",
    "entry-damaged": "an object beside the tensors does not have the CRC-32 that was recorded",
    "expert-blocks-repeated": "every block of experts repeats the first: one rank's were saved for all",
    "experts-identical": "all experts of every layer are equal: copied from one, on purpose or not",
    "experts-missing": "experts that the configuration counts are not stored",
    "experts-repeated": "two experts of one layer are equal",
    "file-missing": "a file that the index, the metadata or the files' numbering names is absent",
    "file-too-short": "a file ends before the tensors that it should hold",
    "index-wrong": "the index and the files' own headers disagree",
    "layers-missing": "layers that the configuration counts are not stored at all",
    "layers-repeated": "two layers are equal in every matrix",
    "malformed": "a file is not laid out as its format demands",
    "master-differs": "a weight is not its fp32 main weight rounded: one of them is stale",
    "masters-rounded": "trained fp32 main weights hold bf16 numbers only: their precision is lost",
    "metadata-missing": "data files without the metadata that is written last: the save did not finish",
    "negative-variance": "a second moment of Adam is negative, which a mean of squares cannot be",
    "not-finite": "NaN or infinity among the weights or their optimizer state",
    "shape-wrong": "a tensor's shape is not the one that the configuration gives",
    "shards-repeated": "blocks of one matrix are equal: one rank's shard was saved for several",
    "state-missing": "a parameter has one part of its optimizer state and lacks another",
    "steps-disagree": "parameters that are always trained together are at different steps",
    "tensor-missing": "a tensor that the configuration asks for is not stored",
    "tensor-repeated": "two layers share one matrix that should be each one's own",
    "tied-differ": "the configuration ties two tensors that are both stored, and not equal",
    "unreadable": "the file system refused to read a file",
    "unsafe": "a file asks for code to run; nothing of it was run",
    "vocabulary-padded": "an embedding has more rows than the vocabulary: padding that was not taken off",
    "zero-block": "a block of a trained matrix is all zero: never written, or lost with its rank",
    "zero-scalar": "a scale is zero: lost when shards were put together",
    "zero-tensor": "a whole tensor is zero where its like in other layers is not",
}  # fmt: skip
"""Every kind of fault that one checkpoint can show, and what it means."""

SHOWN = 8
"""How many tensors a fault names; it counts the rest."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, with which tensors, and where: a file and byte, or rows and columns."""

    kind: str
    tensors: tuple[str, ...]
    where: str
    text: str
    elements: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "tensors": list(self.tensors),
            "where": self.where,
            "text": self.text,
            "elements": self.elements,
            "means": KINDS.get(self.kind, ""),
        }

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f" - at {self.where}" if self.where else "")


def few(names: Sequence[str], most: int = 3) -> str:
    """The first of several names, and how many more there are.

    >>> few(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")

"""A fault: something that a checkpoint should not have, or that two checkpoints do not share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = {
    "bytes-overlap": "two tensors claim the same bytes of a file",
    "checksum-wrong": "a chunk's bytes are not those whose CRC-32 was recorded when it was saved",
    "chunk-mismatch": "a data file holds another element type or shape than the metadata says",
    "chunks-overlap": "two chunks hold the same elements of a tensor",
    "common-missing": "the common state of a Megatron checkpoint (common.pt) is not there: arguments, iteration, groups",
    "config-contradicts": "the tensors are not those of the model that the configuration describes",
    "copies-differ": "two ranks saved the same state, and their copies are not equal",
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
    "scale-misshaped": "a scale has another shape than its quantised weight needs",
    "scale-missing": "a quantised weight lacks its scale, without which it has no numbers",
    "scale-nan": "NaN or infinity among the scales of a quantised weight",
    "scale-orphaned": "a scale without the quantised weight that it belongs to",
    "scale-zero": "the scale of a quantised weight is all zero, so the weight is",
    "shape-wrong": "a tensor's shape is not the one that the configuration gives",
    "shards-repeated": "blocks of one matrix are equal: one rank's shard was saved for several",
    "state-missing": "a parameter has one part of its optimizer state and lacks another",
    "steps-disagree": "parameters that are always trained together are at different steps",
    "tensor-missing": "a tensor that the configuration asks for is not stored",
    "tensor-repeated": "two layers share one matrix that should be each one's own",
    "tied-differ": "the configuration ties two tensors that are both stored, and not equal",
    "tower-missing": "the configuration has a vision or audio tower, of which no tensor is stored",
    "unreadable": "the file system refused to read a file",
    "unsafe": "a file asks for code to run; nothing of it was run",
    "value-implausible": "numbers beyond what any weight is: memory never written, or bits of another type",
    "vocabulary-padded": "an embedding has more rows than the vocabulary: padding that was not taken off",
    "zero-block": "a block of a trained matrix is all zero: never written, or lost with its rank",
    "zero-scalar": "a scale is zero: lost when shards were put together",
    "zero-tensor": "a whole tensor is zero where its like in other layers is not",
}  # fmt: skip
"""Every kind of fault that one checkpoint can show, and what it means."""

_COPY = "copy the file again from its source, or save the checkpoint again"
_SAVED_WRONG = "the save or the conversion went wrong: go back to the one before it, and compare with `intarsia verify A B`"
_MEANT = "where it is not meant, " + _SAVED_WRONG
_SCALES = (
    "restore the weight and its scales together from their source: neither has a meaning alone"
)
_CONFIG = "give the model's own configuration with --config, or convert again from the source"

NEXT = {
    "bytes-overlap": _COPY,
    "checksum-wrong": _COPY,
    "chunk-mismatch": "restore the file that belongs to this save: it is another's, or damaged",
    "chunks-overlap": "save again: which of the two is right cannot be told",
    "common-missing": "restore common.pt from the save",
    "config-contradicts": _CONFIG,
    "copies-differ": "save again: which of the two a loader takes depends on its mesh",
    "digest-differs": "restore the tensors' files from their source: they changed since their digests were taken",
    "dtype-implausible": "correct the element type in the header, or convert again from the source",
    "dtype-mixed": "convert again from the source with one --dtype",
    "elements-missing": "save again with every rank's part: these elements are in no file",
    "entry-damaged": _COPY,
    "expert-blocks-repeated": _SAVED_WRONG,
    "experts-identical": _MEANT,
    "experts-missing": "restore the files of the expert-parallel ranks that hold them, or save again",
    "experts-repeated": _MEANT,
    "file-missing": "restore the files, or use a complete checkpoint",
    "file-too-short": _COPY,
    "index-wrong": "restore the index that belongs to these files, or the files that belong to it",
    "layers-missing": "restore the files of the pipeline stage that holds them, or save again",
    "layers-repeated": _MEANT,
    "malformed": _COPY,
    "master-differs": "take the one that is right: `--optimizer drop` keeps the weights alone",
    "masters-rounded": "resume from a checkpoint whose main weights were saved in fp32",
    "metadata-missing": "use the save before this one: it did not finish",
    "negative-variance": "go on from an earlier checkpoint, or without its optimizer state (`--optimizer drop`)",
    "not-finite": "go on from a checkpoint before the run diverged, or convert again if its source is sound",
    "scale-misshaped": _SCALES,
    "scale-missing": _SCALES,
    "scale-nan": _SCALES,
    "scale-orphaned": "restore the weight, or remove the scale and `quantization_config` if the weight was dequantised",
    "scale-zero": _SCALES,
    "shape-wrong": _CONFIG,
    "shards-repeated": _MEANT,
    "state-missing": "save again with the whole optimizer state, or go on without it (`--optimizer drop`)",
    "steps-disagree": "go on from a save whose counters agree: Adam's corrections go by them",
    "tensor-missing": "restore the file that holds it, or give the model's own configuration with --config",
    "tensor-repeated": _MEANT,
    "tied-differ": "find which of the two is used: a model that ties them loads one and ignores the other",
    "tower-missing": "restore the tower's files; if the text model alone is meant, config.json has to be that model's",
    "unreadable": "look at the disk and at the rights of the file",
    "unsafe": "do not load this checkpoint with torch.load; get it from a source that you trust",
    "value-implausible": _SAVED_WRONG,
    "vocabulary-padded": "take the padding off (convert again from the source), or correct vocab_size",
    "zero-block": _SAVED_WRONG,
    "zero-scalar": _SAVED_WRONG,
    "zero-tensor": _SAVED_WRONG,
}  # fmt: skip
"""What to do about each kind of fault, where its own error does not say."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, with which tensors, and where: a file and byte, or rows and columns.

    `hint` is what the error behind it advises, if one is behind it.
    """

    kind: str
    tensors: tuple[str, ...]
    where: str
    text: str
    elements: int = 0
    hint: str = ""

    @property
    def next(self) -> str:
        """What to do about it."""
        return self.hint or NEXT.get(self.kind, "")

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "tensors": list(self.tensors),
            "where": self.where,
            "text": self.text,
            "elements": self.elements,
            "means": KINDS.get(self.kind, ""),
            "next": self.next,
        }

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f" - at {self.where}" if self.where else "")


_IN_ONE_FILE = (
    "bytes-overlap", "checksum-wrong", "chunk-mismatch", "entry-damaged", "index-wrong", "malformed",
)  # fmt: skip
"""Kinds that one accident gives to everything in a file."""

_EACH = 3
"""So many of a kind in a file are told one by one."""


def gathered(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Each fault once; those that befell one file, and weights that are stale together, as one."""
    groups: dict[object, list[Fault]] = {}
    for fault in dict.fromkeys(faults):
        key: object = fault
        if fault.kind in _IN_ONE_FILE:
            key = fault.kind, _file_of(fault)
        elif fault.kind == "master-differs":
            key = fault.kind
        groups.setdefault(key, []).append(fault)
    return tuple(x for group in groups.values() for x in _as_one(group))


def _as_one(group: list[Fault]) -> list[Fault]:
    if len(group) <= _EACH:
        return group
    first, file = group[0], _file_of(group[0])
    at = f" in {file}" if first.kind in _IN_ONE_FILE else ""
    return [
        Fault(
            first.kind,
            tuple(dict.fromkeys(name for fault in group for name in fault.tensors)),
            file,
            f"{first.text}; and {len(group) - 1:,} more like it{at}",
            sum(fault.elements for fault in group),
            first.hint,
        )
    ]


def _file_of(fault: Fault) -> str:
    """The file of a place such as `__0_0.distcp byte 1,024`."""
    return re.split(r" bytes? (?=[\[\d])", fault.where)[0]


def few(names: Sequence[str], most: int = 3) -> str:
    """The first of several names, and how many more there are.

    >>> few(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")

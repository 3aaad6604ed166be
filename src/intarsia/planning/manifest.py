"""What a checkpoint holds: stored tensors, their layouts over logical tensors, their bytes.

A stored tensor lies in a file as one or more chunks, each a box of it in row-major order.
Its `layout` says which elements of which logical tensors it holds, whatever it fuses, pads
or permutes.  A manifest is read from headers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from math import prod
from typing import Any

from intarsia.dtypes import DType
from intarsia.errors import IntarsiaError
from intarsia.frozen import frozen, frozen_open
from intarsia.layout import Layout
from intarsia.mesh import Box, Rule, Shape
from intarsia.planning.inventory import InventoryItem
from intarsia.planning.problem import Problem
from intarsia.quantised.weight import NOT_QUANTISED, QuantisedWeights
from intarsia.value import PLAIN, Value


@frozen
class Chunk:
    """A box of a stored tensor, and the bytes of a file that hold it (with their wrapping, if any)."""

    box: Box
    file: str
    start_bytes: int
    length_bytes: int


@frozen
class Stored:
    """One tensor as a checkpoint stores it.

    `key` is its name on disk; `name` is that name without the wrappers' prefixes.
    `value` says what is stored for each logical element: itself, as a rule.
    """

    name: str
    dtype: DType
    layout: Layout
    chunks: Sequence[Chunk]
    rule: Rule = Rule()
    key: str = ""
    value: Value = PLAIN

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def nbytes(self) -> int:
        return self.layout.size * self.dtype.itemsize

    @property
    def on_disk(self) -> str:
        """Its name on disk, as far as it has one of its own there."""
        return self.key or self.name

    @property
    def number_type(self) -> DType:
        """The element type of the logical elements that it holds."""
        return self.value.number_type(self.dtype)


@frozen
class Logical:
    """One unfused, unsharded, unpadded tensor."""

    name: str
    shape: Shape
    dtype: DType

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@frozen
class Entry:
    """A small opaque object that a checkpoint carries beside its tensors, as bytes never executed."""

    name: str
    file: str
    start_bytes: int
    length_bytes: int

    @property
    def place(self) -> tuple[str, int, int]:
        """Its file, and where in it its bytes begin and how many they are."""
        return self.file, self.start_bytes, self.length_bytes


@frozen
class SideFile:
    """A small file that travels with the checkpoint unchanged (configuration, tokenizer)."""

    name: str
    path: str


@frozen
class SavedStateDict:
    """A state dict that is carried whole: its objects as they are, and the path to each key in what was nested."""

    objects: Mapping[str, Entry]
    paths: Mapping[str, tuple[str | int, ...]]


@frozen_open
class Manifest:
    """Everything that is known of a checkpoint from its headers.

    `config_made` says that the model configuration was put together from a framework's own
    arguments, for want of the model's: it may be wrong in what those leave open.  `config_doubts`
    are arguments that it cannot express, or that are in doubt: then it is used for reading only.
    `copies` hold elements that a stored tensor holds as well, on another rank.
    `in_memory_files` are contents that no file on disk holds as such, by the name that chunks give for a file.
    `stamps` of files (length, times, inode) tell a later reader that they are still those.
    `inventory` names every file of the folder and every section, with its role and its fate;
    `section` is what the user chose among those, and `saved` is there where that is the whole state dict.
    `state_unclear` is to be raised by whoever needs the parameter that each optimizer state is of;
    `state_by_order` says that this is known by the order of the model's parameters alone.
    `given` is the path by which it was asked for: its own, or that of the run it is of; `chosen` are
    the notes that say why it was taken of that run.
    `quantised` are the weights that are stored with scales, by the names of the stored tensors;
    `metadata` is what the headers of safetensors files say beside their tensors.
    `parts` are stored tensors that no number is of, but that the values of others need (scales).
    """

    format: str
    path: str
    stored: Mapping[str, Stored]
    logical: Mapping[str, Logical]
    files: Mapping[str, int]
    family: str | None = None
    config: Mapping[str, Any] | None = None
    config_made: bool = False
    config_doubts: tuple[str, ...] = ()
    entries: Mapping[str, Entry] = field(default_factory=dict)
    in_memory_files: Mapping[str, bytes] = field(default_factory=dict)
    copies: tuple[Stored, ...] = ()
    sides: tuple[SideFile, ...] = ()
    inventory: tuple[InventoryItem, ...] = ()
    absent: tuple[Logical, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    given: str = ""
    chosen: tuple[str, ...] = ()
    stamps: Mapping[str, tuple[int, int, int, int]] = field(default_factory=dict)
    section: tuple[str, ...] = ()
    saved: SavedStateDict | None = None
    state_unclear: IntarsiaError | None = None
    state_by_order: bool = False
    quantised: QuantisedWeights = NOT_QUANTISED
    metadata: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Stored] = field(default_factory=dict)

    @cached_property
    def sources(self) -> Mapping[str, tuple[Stored, ...]]:
        """For each logical tensor, the stored tensors that hold elements of it."""
        found: dict[str, tuple[Stored, ...]] = {}
        several: dict[str, list[Stored]] = {}
        for stored in self.stored.values():
            pieces = stored.layout.pieces
            if len(pieces) == 1 and (name := pieces[0].tensor) not in found:
                found[name] = (stored,)
                continue
            for name in stored.layout.tensors:
                if name in found:
                    several.setdefault(name, [*found[name]]).append(stored)
                else:
                    found[name] = (stored,)
        found |= {name: tuple(held) for name, held in several.items()}
        return found

    def files_of(self, names: Iterable[str]) -> list[str]:
        """The files that hold any of these logical tensors."""
        stored = (s for name in names for s in self.sources.get(name, ()))
        return sorted({chunk.file for s in stored for chunk in s.chunks})

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors' elements."""
        return sum(s.nbytes for s in self.stored.values())


@frozen
class Target:
    """A stored tensor that is to be written, and the boxes in which it is cut."""

    name: str
    dtype: DType
    layout: Layout
    boxes: tuple[Box, ...]
    rule: Rule = Rule()
    value: Value = PLAIN

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def nbytes(self) -> int:
        return prod(self.layout.shape) * self.dtype.itemsize

"""What a format is: bytes turned into a manifest, and targets into files.

Reading: `detect` looks at a folder, `read` turns its headers into a manifest, `locate` finds
the elements inside a chunk.  Writing: `arrange` gives every box of every target its place in
a file before any byte is written; `Arrangement.closing` are the small files that are written
last, and make the checkpoint one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from intarsia.dtypes import DType
from intarsia.errors import UsageError
from intarsia.family import Param, Table, table_for
from intarsia.format.arrangement import Arrangement as Arrangement
from intarsia.format.arrangement import Slot as Slot
from intarsia.format.arrangement import Wrapping as Wrapping
from intarsia.format.complaint import Complain, Complaint, refuse
from intarsia.format.entries import entries_in_place
from intarsia.format.optimizer_state.learning_rates import Rates
from intarsia.format.optimizer_state.parameter_groups import (
    ParameterGroups,
    has_megatron_groups,
    has_torch_groups,
)
from intarsia.format.request import EntriesToWrite, Request, SourceWithEntries, Wanted
from intarsia.frozen import frozen
from intarsia.layout import Piece
from intarsia.mesh import Box, Mesh, Shape
from intarsia.planning.manifest import Chunk, Entry, Manifest, Stored, Target
from intarsia.state.names import is_state
from intarsia.store.reading.folder import Folder

ReadEntries = Callable[[Iterable[str]], Mapping[str, bytes]]

HeldTarget = tuple[str, DType, Shape, Mapping[Box, Sequence[int]]]
"""A tensor's name, element type and shape, and the ranks that hold each box of it."""

PAGE_BYTES = 4096
"""Elements that start at a multiple of this are written, and mapped, fastest."""


@frozen
class Located:
    """Where a chunk's elements begin in its file.

    `piece`, where the elements are not in row-major order, leads from their places there to
    their row-major places.  `front` is what the chunk begins with, where that tells where they are.
    """

    start_bytes: int
    piece: Piece | None = None
    front: bytes = b""


class Summed(NamedTuple):
    """Bytes of a file whose CRC-32 was taken when they were written; None where it was left out."""

    start_bytes: int
    length_bytes: int
    crc: int | None


class Ends(Protocol):
    """What follows the elements of chunks that are alike: it varies with their checksum alone."""

    def recorded(self, ends: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.uint32]]: ...


class Around(NamedTuple):
    """What lies around the elements of a chunk that was checked, and of all that begin with the same.

    `ends.recorded` looks at what follows the elements of many, a row each, and gives for each whether a
    check of that chunk alone would find nothing, and the CRC-32 of its elements (0: none was computed).
    """

    front: bytes
    ends: Ends


class AbsentFiles(NamedTuple):
    """A set of files whose names count `all` of them: how many are `there`, and the others' names."""

    all: int
    there: int
    names: list[str]


class Recorded(NamedTuple):
    """The `file` in which the SHA-256 of others lie, by their names."""

    file: str
    sha256: Mapping[str, str]


@frozen
class WriteOptions:
    """What a writer needs to know beside the targets.

    `groups` and `step` are those of an optimizer that the format spells by itself; `dtype` is the type that
    weights were asked to be cast to.
    `source` is what the tensors are read from, where that has a say in the names of files.
    `metadata` is what the headers of safetensors files say beside their tensors.
    `rates` are those of the run that will resume.
    """

    mesh: Mesh = Mesh()
    max_shard_bytes: int = 5_000_000_000
    entries: Mapping[str, bytes] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    groups: ParameterGroups | None = None
    step: float | None = None
    dtype: DType | None = None
    source: Manifest | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    rates: Rates | None = None


class Format(ABC):
    """One kind of checkpoint, and all that is peculiar to it; what a format does not say is as it is here.

    `dialects` are those that it is written in, the usual one first; `sharded` says whether a
    mesh cuts its tensors; `carries_anything` whether it takes tensors that no table knows.
    """

    name: str
    dialects: tuple[str, ...] = ("hf", "same", "hf-module", "hf-fused")
    sharded = True
    carries_anything = True

    keeps_keys = False
    """Whether a state dict that is carried whole keeps its keys, its objects and its nesting."""

    header_files: tuple[str, ...] = ()
    """Files that say what the others hold, by their names in the folder of a checkpoint."""

    one_below = False
    """Whether the files lie one folder below the one that users give."""

    trainer_files = False
    """Whether a trainer keeps its own files beside, which number the parameters in the order stored."""

    header_metadata = False
    """Whether what headers of safetensors files say beside their tensors is kept."""

    entries_in_place = True
    """Whether the bytes of an entry lie in its file as they are."""

    flat_groups = False
    """Whether torch reads parameter groups there that are spelled by parameter."""

    main_weights_in_place = False
    """Whether an fp32 main weight is stored where others store the weight."""

    pads_vocabulary = False
    """Whether embedding and head may have rows that no token has."""

    keeps_arguments = False
    """Whether the model is described by arguments of a framework, so that no config.json is needed."""

    found_by_name = False
    """Whether Transformers loads it, and makes new weights in place of those that it finds no name of."""

    takes_rates = False
    """Whether parameter groups are found by the rates of the run that resumes."""

    @property
    def keeps_names(self) -> bool:
        """Whether tensors keep the names and fusions that they come with, and quantised ones their scales."""
        return "same" in self.dialects

    @abstractmethod
    def detect(self, path: PurePath) -> bool:
        """Whether this is such a checkpoint, from its content."""

    @abstractmethod
    def read(
        self,
        path: PurePath,
        config: Mapping[str, Any] | None,
        complain: Complain = refuse,
        section: Sequence[str] = (),
    ) -> Manifest:
        """The manifest of a checkpoint, from its headers alone; what `complain` keeps does not end it.

        `section` names the model among several, and its optimizer where that must be named.
        """

    def locate(self, folder: Folder, stored: Stored, chunk: Chunk) -> Located:
        """Where a chunk's elements are inside its bytes."""
        return Located(chunk.start_bytes)

    def front_kind(self, stored: Stored) -> Hashable:
        """What decides, beside its element type, which first bytes (`Located.front`) a chunk of a tensor may
        have: of two with the same and equal boxes and lengths, equal ones lead to the same place.

        None where no first bytes do.
        """
        return None

    def around(self, folder: Folder, stored: Stored, chunk: Chunk) -> Around | None:
        """What lies around the elements of a chunk, which is checked; None where no other is known by it.

        Of two chunks of the same `front_kind`, element type, shape and length, which begin with the same
        and end as `Around.ends` says, neither is at fault unless both are, and their elements are all that
        lies between.
        """
        return None

    def entries(
        self, src: Manifest, folder: Folder, limit_bytes: int
    ) -> Iterator[tuple[str, bytes]]:
        """The bytes of every entry; raise at one of more than `limit_bytes`."""
        return entries_in_place(src, folder, limit_bytes)

    def groups(self, src: Manifest, entries: Mapping[str, bytes]) -> ParameterGroups | None:
        """The parameter groups in the entries of a checkpoint."""
        if not (has_torch_groups(entries) or has_megatron_groups(entries)):
            return None
        from intarsia.format.optimizer_state.groups_in_entries import groups_from_torch

        return groups_from_torch(src, entries)

    def has_gaps(self, name: str) -> bool:
        """Whether a stored tensor has elements, between those of logical tensors, that mean nothing."""
        return False

    def checksum(self, folder: Folder, chunk: Chunk) -> Summed | None:
        """What was summed when a chunk was saved; None where a format sums nothing."""
        return None

    def everything(self, folder: Folder) -> tuple[Mapping[str, Sequence[Chunk]], Sequence[Entry]]:
        """All chunks by the names of their tensors, and all entries that checksums can be checked of."""
        return {}, ()

    def contradictions(self, src: Manifest, folder: Folder) -> Iterator[Complaint]:
        """Where what lies beside the tensors contradicts itself or the folder."""
        return iter(())

    def recorded(self, folder: Folder, complain: Complain) -> Recorded | None:
        """The checksums of whole files that lie beside them; None where there are none."""
        return None

    def unfinished(self, path: PurePath) -> Complaint | None:
        """Why a folder that should hold such a checkpoint holds none; None where nothing hints at one."""
        return None

    def misleading(self, path: PurePath) -> Iterator[Complaint]:
        """Files that should lead to a checkpoint, and do not."""
        return iter(())

    def stray(self, path: PurePath) -> str:
        """A file by which a framework reads such a checkpoint from a folder of another format; "" for none."""
        return ""

    def is_frame(self, name: str) -> bool:
        """Whether a file of the folder frames the tensors: it is read, and made again with the result."""
        return name in self.header_files

    def describes_itself(self, file: str) -> bool:
        """Whether a file alone says what it holds, so that nobody knows it where the file is lost."""
        return False

    def absent_files(self, files: Collection[str]) -> Iterator[AbsentFiles]:
        """Files that are absent by the numbers in the names of others."""
        return iter(())

    def rank_of(self, file: str) -> int | None:
        """The rank that wrote a file, by its name."""
        return None

    def is_alone(self, path: PurePath) -> bool:
        """Whether a file that is read by itself is all that its folder holds of a checkpoint."""
        return False

    def refuse_part(self, src: Manifest) -> None:
        """Raise where a source is a part of a checkpoint, which can be read and not converted."""
        return

    def table(self, src: Manifest) -> Table | None:
        """The table of a source's family, by which its tensors are written."""
        return table_for(src.config)

    def rows(self, table: Table, dialect: str, mesh: Mesh, spec: str) -> Sequence[Param]:
        """The tensors of a model as this format stores them."""
        return tuple(table.dialects[dialect].values())

    def spell(self, name: str) -> str:
        """A tensor's name on disk; optimizer state comes with its kind before its parameter."""
        return name

    def check_model(self, src: Manifest, table: Table, request: Request) -> None:
        """Raise where no checkpoint of this format can hold the model, on the mesh that is asked for."""
        return

    def check_state(self, src: Manifest) -> None:
        """Raise where the optimizer state of a source cannot be written whole."""
        return

    def targets(self, src: Manifest, request: Request) -> Wanted | None:
        """The tensors to write; None where they are the rows, cut by the mesh."""
        return None

    def left_out(self, name: str) -> str:
        """Why a logical tensor of optimizer state has no tensor of its own; "" where it has one."""
        return ""

    def counted(self, src: Manifest) -> tuple[str, ...]:
        """The steps of parameters for which one number is written."""
        return ()

    def remarks(self, src: Manifest, request: Request) -> Iterator[str]:
        """What is to be known of a checkpoint that is made of a source."""
        return iter(())

    def entries_to_write(self, src: SourceWithEntries, wanted: Wanted) -> EntriesToWrite:
        """What goes along with tensors and their optimizer state."""
        if not has_megatron_groups(src.manifest.entries):
            return EntriesToWrite(src.entries)
        from intarsia.format.optimizer_state.groups_in_entries import groups_as_torch_entries

        names = ((t.name, t.layout.tensors) for t in wanted.targets)
        params = {name: of for name, of in names if not is_state(name)}
        spelled = groups_as_torch_entries(src.groups(), src.entries, params, flat=self.flat_groups)
        return EntriesToWrite(spelled | dict(src.entries))

    def entries_for_weights(self, src: Manifest, read: ReadEntries) -> Mapping[str, bytes]:
        """What goes along with weights alone: the entries that describe the model."""
        return {}

    def lay_out(
        self,
        held: Iterable[HeldTarget],
        entries: Mapping[str, bytes],
        ranks: int,
        paths: Mapping[str, tuple[str, ...]],
    ) -> Arrangement:
        """The files of a live model, from the ranks that hold each box of each tensor.

        `paths` are the keys of those that lay in a nested dict.
        """
        raise self._not_live()

    def file_of(self, rank: int) -> str:
        """The file that a rank of a live model writes."""
        raise self._not_live()

    def _not_live(self) -> UsageError:
        return UsageError(
            f"a live model cannot be saved as {self.name}",
            hint="save it with intarsia.save, and convert the result",
        )

    @abstractmethod
    def arrange(self, targets: Sequence[Target], options: WriteOptions) -> Arrangement:
        """Give every box of every target its place."""


def refuse_section(section: Sequence[str], name: str) -> None:
    """Raise where a section is asked of a format that holds one model."""
    if section:
        raise UsageError(
            f"{name} holds one model and its optimizer: it has no section {section[0]!r}",
            hint="leave --section out",
        )

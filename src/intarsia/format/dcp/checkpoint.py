"""`torch.distributed.checkpoint` folders: `.metadata`, and `__<rank>_<n>.distcp` files.

Each chunk of a tensor is a whole `torch.save` archive inside a `.distcp` file.  Its elements
are read in place, by their byte offsets; no pickle is executed and torch is not imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import PurePath
from typing import Any

from intarsia.errors import FormatError
from intarsia.family import Table, table_for
from intarsia.format.base import Arrangement, Format, Held, Located, Summed, WriteOptions
from intarsia.format.complaint import Complain, Complaint, going_on, refuse
from intarsia.format.dcp.accelerate import below, is_accelerate, parts_of
from intarsia.format.dcp.entries import entries_of
from intarsia.format.dcp.metadata import (
    MAX_METADATA_BYTES,
    METADATA,
    Metadata,
    TensorRecord,
    read_metadata,
)
from intarsia.format.dcp.write import arrange, file_of, lay_out, rank_of
from intarsia.format.folder.side_files import HEADERS
from intarsia.format.folder.stored_config import choose_config
from intarsia.format.hf.safetensors_metadata import as_file, kept_metadata
from intarsia.format.naming.logical_names import divided, name_tensors
from intarsia.format.naming.quantised_names import MODELOPT, modelopt_of
from intarsia.format.naming.sections import Sections, explained
from intarsia.format.naming.wrappers import bare, unwrapped
from intarsia.format.optimizer_state.numbered_state import (
    NumberedState,
    give_names,
    group_lists,
    parameters_by_number,
)
from intarsia.format.optimizer_state.optimizer_names import state_in, unnumbered_error
from intarsia.format.torch_file.torch_zip import (
    check_directory,
    keeping_ends,
    read_crc,
    read_payload,
)
from intarsia.layout import Layout, Loop, Piece
from intarsia.mesh import Box, Shape
from intarsia.planning.manifest import Chunk, Entry, Manifest, Stored, Target
from intarsia.quantity import human
from intarsia.state.names import StateName
from intarsia.store.folder import Folder
from intarsia.store.lookup import exists, is_file, is_folder, listed, size_of

HOLLOW_BYTES = 64 << 20
"""How much of a checkpoint may be claimed without being stored, before it is no checkpoint."""


class Archives(Format):
    """Formats whose chunks are archives of torch, each with a checksum, which `.metadata` lists."""

    header_files: tuple[str, ...] = (METADATA,)

    def locate(self, folder: Folder, stored: Stored, chunk: Chunk) -> Located:
        return locate(folder, stored, chunk)

    def checksum(self, folder: Folder, chunk: Chunk) -> Summed | None:
        return sealed(folder, chunk)

    def rank_of(self, file: str) -> int | None:
        return rank_of(file)

    def everything(self, folder: Folder) -> tuple[Sequence[tuple[str, Chunk]], Sequence[Entry]]:
        metadata, _ = open_metadata(folder, lambda complaint: None)
        chunks = [(r.name, c) for r in metadata.tensors.values() for c in stored_of(r).chunks]
        entries = [
            Entry(o.name, o.file, o.start_bytes, o.length_bytes) for o in metadata.objects.values()
        ]
        return chunks, entries


class Dcp(Archives):
    """The format `dcp`."""

    name = "dcp"
    flat_groups = True

    def detect(self, path: PurePath) -> bool:
        return is_file(path / METADATA) or is_accelerate(path)

    def read(
        self,
        path: PurePath,
        config: Mapping[str, Any] | None,
        complain: Complain = refuse,
        section: Sequence[str] = (),
    ) -> Manifest:
        metadata, sizes = _open(path, complain)
        with going_on(complain, "config.json"):
            config = choose_config(config, path)
        modelopt = None
        with going_on(complain, MODELOPT):
            modelopt = modelopt_of(path)
        metadata_kept: dict[str, str] = {}
        with going_on(complain, HEADERS):
            metadata_kept = kept_metadata(path)
        listed = [*map(stored_of, metadata.tensors.values())]
        objects, paths = metadata.objects, metadata.paths
        sections = divided(listed, config, str(path), section, objects=objects, paths=paths)
        with Folder(path) as folder:
            numbers, by_order, unclear = numbers_in(folder, metadata, sections, table_for(config))
            entries, told = entries_of(folder, metadata, sections, numbers)
        named = name_tensors(
            listed,
            config,
            str(path),
            complain,
            modelopt,
            sections=sections,
            numbers=numbers,
        )
        return Manifest(
            format=self.name,
            path=str(path),
            stored=named.stored,
            logical=named.logical,
            files=sizes,
            family=named.family,
            config=config,
            entries=entries,
            in_memory_files=told,
            inventory=named.inventory,
            absent=named.absent,
            problems=named.problems,
            notes=(*named.notes, *_remarks(numbers, by_order, unclear)),
            section=tuple(section),
            state_unclear=unclear or named.unclear,
            state_by_order=by_order,
            quantised=named.quantised,
            metadata=metadata_kept,
        )

    def spell(self, name: str) -> str:
        return spell(name)

    def unfinished(self, path: PurePath) -> Complaint | None:
        """Data files that lack their metadata, in the folder or in one of its iterations."""
        for folder in (path, *listed(path, "iter_*")) if is_folder(path) else ():
            files, metadata = listed(folder, "*.distcp"), folder / METADATA
            if files and not (exists(metadata) and size_of(metadata)):
                text = f"{len(files)} data files and no {METADATA}, which is written last"
                if exists(metadata):
                    text = (
                        f"{len(files)} data files, and {METADATA}, which is written last, is empty"
                    )
                return Complaint(FormatError(text, kind="metadata-missing"), (str(folder),))
        return None

    def lay_out(
        self, held: Iterable[Held], entries: Mapping[str, bytes], ranks: int
    ) -> Arrangement:
        return lay_out(held, entries, ranks)

    def file_of(self, rank: int) -> str:
        return file_of(rank)

    def arrange(self, targets: Sequence[Target], options: WriteOptions) -> Arrangement:
        made = arrange(targets, options)
        return replace(made, closing={**made.closing, **as_file(options.metadata)})


def _open(path: PurePath, complain: Complain) -> tuple[Metadata, dict[str, int]]:
    """The metadata of a folder, or of the parts that make it up, and the sizes of its data files."""
    if is_file(path / METADATA):
        with Folder(path) as folder:
            return open_metadata(folder, complain)
    whole, sizes = Metadata({}, {}), dict[str, int]()
    for part in parts_of(path, complain):
        with Folder(path / part) as folder:
            metadata, held = open_metadata(folder, complain)
        moved = below(part, metadata)
        both = (
            whole.tensors.keys() & moved.tensors.keys()
            | whole.objects.keys() & moved.objects.keys()
        )
        if twice := sorted(both):
            raise FormatError(
                f"`{twice[0]}` is in two parts of {path}, {part} among them",
                hint=f"give the folder of one part, for example {path / part}",
            )
        whole = Metadata(
            whole.tensors | moved.tensors,
            whole.objects | moved.objects,
            {**whole.paths, **moved.paths},
            whole.extra | moved.extra,
        )
        sizes |= {f"{part}/{file}": size for file, size in held.items()}
    return whole, sizes


def spell(name: str) -> str:
    """A tensor's name as torch flattens state dicts: optimizer state by parameter, then kind.

    >>> spell("optimizer.exp_avg.model.norm.weight")
    'optimizer.state.model.norm.weight.exp_avg'
    """
    state = StateName.of(name)
    return state.as_torch if state else name


def numbers_in(
    folder: Folder, metadata: Metadata, sections: Sections, table: Table | None
) -> tuple[dict[str, str], bool, FormatError | None]:
    """The parameters of the optimizer's numbered states, whether by their order alone, and why they are not known."""
    root = sections.optimizer
    if root is None:
        return {}, False, None
    tensors = metadata.tensors
    states = [
        NumberedState(name, state.param, tensors[name].shape)
        for name, of in sections.state.items()
        if of == root and (state := state_in(name, root)) and state.param.isdecimal()
    ]
    groups = group_lists(folder, metadata, root)
    if not states and not any(type(n) is int for g in groups for n in g.get("params") or ()):
        return {}, False, None
    order = {
        sections.names[name]: tensors[name].shape
        for name in metadata.paths
        if name in sections.names and tensors[name].dtype.floating
    }

    def named(name: str) -> str:
        plain = bare(name)
        return unwrapped(plain, order) or (explained(plain, order) or ("", plain))[1]

    try:
        tied = table.tied if table else ()
        numbers = parameters_by_number(states, groups, order, named, tied)
        return numbers, bool(states) and not give_names(groups), None
    except FormatError as why:
        return {}, False, unnumbered_error(why.brief, str(folder.root)) if states else None


def _remarks(
    numbers: Mapping[str, str], by_order: bool, unclear: FormatError | None
) -> Iterator[str]:
    if numbers:
        yield f"the optimizer's state is numbered: {len(numbers)} numbers are parameters by name here"
    if by_order:
        yield (
            "the numbers have no names: they are read in the order of the model's parameters, as"
            " in an optimizer made with model.parameters()"
        )
    if unclear is not None:
        yield unclear.brief


def stored_of(record: TensorRecord) -> Stored:
    """A tensor of the metadata, as its own layout."""
    chunks = tuple(
        Chunk(Box(c.offsets, c.shape), c.file, c.start_bytes, c.length_bytes) for c in record.chunks
    )
    layout = Layout.of(record.name, record.shape)
    return Stored(record.name, record.dtype, layout, chunks, key=record.name)


def open_metadata(folder: Folder, complain: Complain = refuse) -> tuple[Metadata, dict[str, int]]:
    """A folder's metadata, and the sizes of its data files, each of which is there and long enough."""
    data = folder.read_all(METADATA, MAX_METADATA_BYTES)
    metadata = read_metadata(data, str(folder.root / METADATA), complain)
    return metadata, check_files(folder, metadata, complain)


def check_files(folder: Folder, metadata: Metadata, complain: Complain = refuse) -> dict[str, int]:
    """The sizes of the data files; complain where one is absent or too short."""
    ends: dict[str, int] = {}
    held: dict[str, int] = {}
    for file, start, length in _extents(metadata):
        ends[file] = max(ends.get(file, 0), start + length)
        held[file] = held.get(file, 0) + 1
    shared = _shared(metadata)
    told: list[FormatError] = []

    def tell(error: FormatError, *files: str) -> None:
        told.append(error)
        complain(Complaint(error, files))

    absent = sorted(file for file in ends if not folder.has(file))
    if absent:
        error = FormatError(
            f"{folder.root} lacks {len(absent)} of {len(ends)} data files"
            f" ({sum(held[f] for f in absent)} chunks): {', '.join(absent[:4])}",
            hint="restore the files, or use a complete checkpoint",
            kind="file-missing",
        )
        tell(error, *absent)
    sizes = {file: folder.size(file) for file in sorted(ends) if file not in absent}
    for file, size in sizes.items():
        if size < ends[file]:
            error = FormatError(
                f"{folder.root / file} has {size:,} bytes, its chunks end at {ends[file]:,}",
                hint="the file is truncated: copy it again from its source",
                kind="file-too-short",
            )
            tell(error, file)
        elif both := shared.get(file):
            error = FormatError(
                f"{both[0]} and {both[1]} occupy the same bytes of {folder.root / file}",
                hint="the metadata is another checkpoint's, or damaged",
                kind="bytes-overlap",
            )
            tell(error, file)
    hollow = _hollow(folder, metadata, sum(sizes.values()))
    if hollow is not None:
        # Where files are lost it is for their lack that too little is stored, and that is said.
        raise told[0] if told else hollow
    return sizes


def _hollow(folder: Folder, metadata: Metadata, held_bytes: int) -> FormatError | None:
    """What is wrong where tensors claim far more than is stored: to go over them would never end."""
    claims = {t.name: prod(t.shape) * t.dtype.itemsize for t in metadata.tensors.values()}
    claimed = sum(claims.values())
    if claimed > 4 * held_bytes + HOLLOW_BYTES:
        largest = max(claims, key=claims.__getitem__)
        return FormatError(
            f"{folder.root} describes {human(claimed)} of tensors, but its files have"
            f" {human(held_bytes)}; `{largest}` alone would have {human(claims[largest])}",
            hint="the metadata is another checkpoint's, or damaged",
            kind="elements-missing",
        )
    return None


def _extents(metadata: Metadata) -> Iterator[tuple[str, int, int]]:
    for tensor in metadata.tensors.values():
        for c in tensor.chunks:
            yield c.file, c.start_bytes, c.length_bytes
    for o in metadata.objects.values():
        yield o.file, o.start_bytes, o.length_bytes


def _shared(metadata: Metadata) -> dict[str, tuple[str, str]]:
    """By file, the first two chunks that claim the same bytes of it."""
    by_file: dict[str, list[tuple[int, int, str, Shape]]] = {}
    for tensor in metadata.tensors.values():
        for c in tensor.chunks:
            if c.length_bytes:
                at = (c.start_bytes, c.start_bytes + c.length_bytes, tensor.name, c.offsets)
                by_file.setdefault(c.file, []).append(at)
    for o in metadata.objects.values():
        at = (o.start_bytes, o.start_bytes + o.length_bytes, o.name, ())
        by_file.setdefault(o.file, []).append(at)
    found: dict[str, tuple[str, str]] = {}
    for file, claims in by_file.items():
        claims.sort()
        for (_, end, a, at_a), (start, _, b, at_b) in pairwise(claims):
            if start < end:
                found[file] = (
                    f"chunk {list(at_a)} of `{a}`",
                    f"chunk {list(at_b)} of `{b}` (byte {start:,})",
                )
                break
    return found


def locate(folder: Folder, stored: Stored, chunk: Chunk) -> Located:
    """Find a chunk's elements inside its archive, and check them against the metadata."""
    where = f"{folder.root}/{chunk.file} byte {chunk.start_bytes:,} (`{stored.key}` {chunk.box})"

    def read(start_bytes: int, length_bytes: int) -> bytes:
        return folder.read(chunk.file, chunk.start_bytes + start_bytes, length_bytes)

    payload = read_payload(read, chunk.length_bytes, where)
    if payload.dtype != stored.dtype or payload.shape != chunk.box.shape:
        raise FormatError(
            f"the metadata says {stored.dtype} {list(chunk.box.shape)}, the archive holds"
            f" {payload.dtype} {list(payload.shape)} - at {where}",
            hint="the data file is another checkpoint's, or damaged",
            kind="chunk-mismatch",
        )
    start = chunk.start_bytes + payload.start_bytes + payload.storage_offset * stored.dtype.itemsize
    strides = row_major(payload.shape)
    loops = [
        Loop(n, at, to)
        for n, at, to in zip(payload.shape, payload.stride, strides, strict=True)
        if n > 1
    ]
    if all(loop.at == loop.to for loop in loops) or not prod(payload.shape):
        return Located(start)
    return Located(start, Piece("", 0, 0, tuple(loops)).canonical())


def sealed(folder: Folder, chunk: Chunk) -> Summed:
    """The bytes of a file that torch summed when it saved a chunk, with their CRC-32.

    Torch never looks at the sum again; it is None where torch was told not to take it.
    """
    where = f"{folder.root / chunk.file} byte {chunk.start_bytes:,}"

    def read_there(start_bytes: int, length_bytes: int) -> bytes:
        return folder.read(chunk.file, chunk.start_bytes + start_bytes, length_bytes)

    read = keeping_ends(read_there, chunk.length_bytes)
    payload = read_payload(read, chunk.length_bytes, where)
    crc = read_crc(read, chunk.length_bytes, payload, where)
    check_directory(read, chunk.length_bytes, payload, crc, where)
    return Summed(chunk.start_bytes + payload.start_bytes, payload.length_bytes, crc)


def row_major(shape: Shape) -> Shape:
    """The strides of a contiguous tensor."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))

"""One checkpoint held against itself: whole, readable, true to its sums, free of known faults."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile
from zlib import crc32

from intarsia.checking.content import content_faults, notes_of
from intarsia.checking.digest import check_digests
from intarsia.checking.fault import Fault, few
from intarsia.checking.repeats import repeat_faults
from intarsia.checking.structure import (
    left_out,
    reading_fault,
    structure_faults,
    unfinished,
    wrong_shapes,
)
from intarsia.checking.survey import Progress, survey, surveyed
from intarsia.checking.training import (
    masters_that_differ,
    missing_state,
    rounded_masters,
    steps_that_disagree,
)
from intarsia.checkpoint import Checkpoint
from intarsia.errors import FamilyError, FormatError, IntarsiaError
from intarsia.family import table_for
from intarsia.format.sides import DIGESTS, read_config
from intarsia.formats import folder_of, format_of, read_manifest
from intarsia.planning.manifest import Manifest
from intarsia.run.budget import Budget

ConfigLike = str | Path | Mapping[str, Any] | None

_NO_FAMILY = {"model_type": ""}
"""A configuration that no table answers to: tensors are read name by name."""


@dataclass(frozen=True)
class Soundness:
    """Whether a checkpoint is sound; true where no fault was found."""

    a: str
    compared: int
    elements: int
    faults: tuple[Fault, ...]
    notes: tuple[str, ...] = ()
    format: str | None = None
    family: str | None = None

    @property
    def sound(self) -> bool:
        return not self.faults

    @property
    def different(self) -> tuple[Any, ...]:
        """Nothing: there is no second checkpoint to differ from."""
        return ()

    def __bool__(self) -> bool:
        return self.sound

    def as_json(self) -> dict[str, Any]:
        return {
            "sound": self.sound,
            "a": self.a,
            "format": self.format,
            "family": self.family,
            "compared": self.compared,
            "elements": self.elements,
            "different": [],
            "faults": [fault.as_json() for fault in self.faults],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        if self.sound:
            return f"sound: {self.compared:,} tensors, {self.elements:,} elements"
        return "\n".join(map(str, self.faults))


def examine(
    path: str | Path,
    config: ConfigLike,
    budget: Budget,
    progress: Progress | None = None,
) -> Soundness:
    """Look for every fault that one checkpoint can show.

    Raises where the path is no checkpoint at all; a checkpoint that cannot be read is at fault.
    """
    where = Path(path)
    if isinstance(config, (str, Path)):
        config = read_config(Path(config))
    try:
        format = format_of(where).name
    except FormatError:
        if (fault := unfinished(where)) is None:
            raise
        return Soundness(str(path), 0, 0, (fault,))
    manifest, faults = read_headers(where, config)
    if manifest is None:
        return Soundness(str(path), 0, 0, tuple(faults), format=format)
    faults += structure_faults(manifest)
    faults += missing_state(manifest)
    found = survey(manifest, budget, progress)
    table = table_for(manifest.config)
    padded = manifest.format in ("torch_dist", "fsdp_dtensor")
    faults += content_faults(found, padded)
    faults += repeat_faults(found, table.tied if table else _ties(manifest))
    faults += steps_that_disagree(found)
    faults += rounded_masters(found)
    faults += masters_that_differ(manifest, found, budget)
    faults += damaged_entries(manifest)
    faults += digest_faults(manifest, budget)
    compared, elements = surveyed(found)
    notes = (*manifest.notes, *left_out(manifest), *notes_of(found))
    return Soundness(
        manifest.path,
        compared,
        elements,
        _once(faults),
        notes,
        manifest.format,
        manifest.family,
    )


def read_headers(
    where: Path, config: Mapping[str, Any] | None
) -> tuple[Manifest | None, list[Fault]]:
    """The manifest, and what was wrong with reading it; name by name where the family fails."""
    try:
        return read_manifest(where, config), []
    except FamilyError as error:
        faults = [reading_fault(where, error)]
    except IntarsiaError as error:
        return None, [reading_fault(where, error)]
    try:
        manifest = read_manifest(where, _NO_FAMILY)
    except IntarsiaError as error:
        return None, [*faults, reading_fault(where, error)]
    shaped = list(wrong_shapes(manifest, config or _config_beside(where)))
    return manifest, shaped or faults


def _config_beside(where: Path) -> Mapping[str, Any] | None:
    root = where if where.is_dir() else where.parent
    file = root / "config.json"
    return read_config(file) if file.is_file() else None


def _ties(manifest: Manifest) -> dict[str, str]:
    """The tie of head and embedding that a configuration without a table states."""
    if not (manifest.config or {}).get("tie_word_embeddings"):
        return {}
    heads = [name for name in manifest.logical if name.endswith("lm_head.weight")]
    tables = [name for name in manifest.logical if name.endswith("embed_tokens.weight")]
    return {heads[0]: tables[0]} if len(heads) == len(tables) == 1 else {}


def _once(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Each fault once, in the order in which they were found."""
    return tuple(dict.fromkeys(faults))


def damaged_entries(manifest: Manifest) -> Iterator[Fault]:
    """Objects beside the tensors that are archives whose members have another CRC-32."""
    if manifest.format == "hf":
        return
    with folder_of(manifest) as folder:
        for entry in manifest.entries.values():
            where = f"{entry.file} byte {entry.start_bytes:,}"
            try:
                data = folder.read(entry.file, entry.start_bytes, entry.length_bytes)
                wrong = _wrong_member(data) if data.startswith(b"PK") else None
            except (IntarsiaError, BadZipFile, NotImplementedError, EOFError) as error:
                wrong = str(error).partition("\n")[0]
            if wrong is not None:
                text = f"the object `{entry.name}` is damaged: {wrong}"
                yield Fault("entry-damaged", (entry.name,), where, text)


def _wrong_member(data: bytes) -> str | None:
    with ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            start = info.header_offset + 30
            named = int.from_bytes(data[start - 4 : start - 2], "little")
            extra = int.from_bytes(data[start - 2 : start], "little")
            start += named + extra
            found = crc32(data[start : start + info.file_size])
            if info.CRC and found != info.CRC:
                return f"{info.filename} has CRC-32 {found:08x}, recorded {info.CRC:08x}"
    return None


def digest_faults(manifest: Manifest, budget: Budget) -> Iterator[Fault]:
    """Tensors that are not those whose digests lie in the checkpoint."""
    if manifest.config == _NO_FAMILY:
        return  # digests go by the names of the family
    try:
        with Checkpoint(manifest) as checkpoint:
            wrong = check_digests(checkpoint, budget)
    except IntarsiaError as error:
        yield reading_fault(Path(manifest.path), error)
        return
    if wrong:
        names = tuple(each.name for each in wrong)
        first = wrong[0]
        text = (
            f"{len(names)} tensors are not those whose digests were stored: {few(names)};"
            f" {first.expected or 'nothing'} was stored of {first.name}, {first.found or 'nothing'} found"
        )
        yield Fault("digest-differs", names, DIGESTS, text)

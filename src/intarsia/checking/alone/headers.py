"""The headers of a checkpoint as far as they can be read, what was wrong with the others, and why there may be none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any

from intarsia.checking.fault import Fault, fault_of, with_more
from intarsia.checking.naming import place_of
from intarsia.errors import FamilyError, IntarsiaError, UsageError, few
from intarsia.family import Table, table_for
from intarsia.format.complaint import Complaint
from intarsia.format.folder.adapters import inside_peft, refuse_inside_peft
from intarsia.format.naming.spelling import logical_members
from intarsia.format.registry import FORMATS, format_named, read_manifest
from intarsia.frozen import frozen_open
from intarsia.opened.model_names import compared_with_model
from intarsia.planning.manifest import Chunk, Manifest
from intarsia.state.names import like, parameter_of

NO_FAMILY = {"model_type": ""}
"""A configuration that no table answers to: tensors are read name by name."""

_LOST = ("file-missing", "file-too-short")


@frozen_open
class Headers:
    """What was read of a checkpoint's headers; no manifest where none of it can be read."""

    path: str
    manifest: Manifest | None
    complaints: tuple[Complaint, ...]

    @cached_property
    def lost(self) -> frozenset[str]:
        """The logical tensors that are not what they should be, or in files that cannot be read."""
        held = {name for complaint in self.complaints for name in self._tensors(complaint)}
        if self.manifest is not None and any(map(self._is_opaque, self.complaints)):
            held |= {x.name for x in self.manifest.absent}
        return frozenset(held)

    @property
    def files(self) -> frozenset[str]:
        """The files that something is wrong with."""
        return frozenset(file for complaint in self.complaints for file in complaint.files)

    def faults(self) -> Iterator[Fault]:
        """Each complaint as a fault with the tensors that it is about, those of like tensors as one."""
        groups: dict[object, list[Complaint]] = {}
        for complaint in self.complaints:
            if self._is_reported(complaint):
                continue
            like = next((place_of(name).template for name in self._tensors(complaint)), None)
            shaped = like is not None and isinstance(complaint.error, FamilyError)
            key = (complaint.error.kind, like) if shaped else id(complaint)
            groups.setdefault(key, []).append(complaint)
        for group in groups.values():
            error = group[0].error
            names = tuple(dict.fromkeys(name for c in group for name in self._tensors(c)))
            text = error.brief
            if names and not any(name in text for name in names):
                about = "it holds" if isinstance(error, FamilyError) else "unreadable:"
                text += f"; {about} {few(names)}"
            files = dict.fromkeys(file for c in group for file in c.files)
            elements = sum(map(self._elements, group))
            where = few(list(files), 4) or self.path
            yield Fault(
                error.kind, names or error.tensors, where, with_more(text, group), elements,
                error.hint or "", tuple(files),
            )  # fmt: skip

    def notes(self) -> Iterator[str]:
        """What could not be judged."""
        strange = [c for c in self.complaints if isinstance(c.error, FamilyError)]
        misfits = {name for complaint in strange for name in self._tensors(complaint)}
        if unread := self.lost - misfits:
            yield (
                f"{len(unread):,} tensors are in files that are absent or damaged: their content"
                " was not checked"
            )

    def _tensors(self, complaint: Complaint) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for name in complaint.names:
            members = logical_members(parameter_of(name), self._table)
            names |= dict.fromkeys(map(like(name), members))
        if self.manifest is not None:
            for file in complaint.files:
                names |= dict.fromkeys(name for name, _ in self._beyond.get(file, ()))
        return tuple(names)

    def _elements(self, complaint: Complaint) -> int:
        chunks = {c for file in complaint.files for _, c in self._beyond.get(file, ())}
        return sum(chunk.box.size for chunk in chunks)

    @cached_property
    def _beyond(self) -> dict[str, list[tuple[str, Chunk]]]:
        """By file, the tensors with chunks that are not there, and those chunks."""
        found: dict[str, list[tuple[str, Chunk]]] = {}
        if self.manifest is not None:
            for stored in self.manifest.stored.values():
                for chunk in stored.chunks:
                    if not is_there(self.manifest, chunk):
                        held = found.setdefault(chunk.file, [])
                        held += [(name, chunk) for name in stored.layout.tensors or (stored.name,)]
        return found

    @cached_property
    def _table(self) -> Table | None:
        return table_for(self.manifest.config) if self.manifest else None

    @cached_property
    def _read(self) -> frozenset[str]:
        """The files whose tensors are known."""
        stored = self.manifest.stored.values() if self.manifest else ()
        return frozenset(chunk.file for s in stored for chunk in s.chunks)

    def _is_reported(self, complaint: Complaint) -> bool:
        """Whether it reports an absent or short file that another complaint reports too."""
        if complaint.error.kind not in _LOST or complaint.names or len(complaint.files) != 1:
            return False
        (file,) = complaint.files
        first = next(c for c in self.complaints if c.error.kind in _LOST and file in c.files)
        return first is not complaint

    def _is_opaque(self, complaint: Complaint) -> bool:
        """Whether files are absent or unreadable, and nothing says what they held."""
        assert self.manifest is not None
        format = format_named(self.manifest.format)
        held = [*filter(format.describes_itself, complaint.files)]
        return not complaint.names and bool(held) and self._read.isdisjoint(held)


def is_there(manifest: Manifest, chunk: Chunk) -> bool:
    """Whether a chunk's bytes lie inside a file that exists."""
    if chunk.start_bytes + chunk.length_bytes <= manifest.files.get(chunk.file, -1):
        return True
    return chunk.file in manifest.in_memory_files or not chunk.box.size


def read_headers(
    where: PurePath, config: Mapping[str, Any] | None, section: str | Sequence[str] | None = None
) -> Headers:
    """The headers of a checkpoint; name by name where the family fails."""
    kept: list[Complaint] = []
    try:
        manifest = read_manifest(where, config, kept.append, section)
        if format_named(manifest.format).found_by_name:
            refuse_inside_peft(manifest)
            manifest = compared_with_model(manifest, on_disk=True, complain=kept.append)
        elif inside_peft(manifest):  # a run saves its model so
            kept.clear()
            manifest = read_manifest(where, NO_FAMILY, kept.append, section)
        return Headers(str(where), manifest, tuple(kept))
    except UsageError:
        raise  # a question to the user, no fault of the checkpoint's
    except FamilyError as error:
        first = Complaint(error)
    except IntarsiaError as error:
        return Headers(str(where), None, _with(kept, error))
    kept.clear()
    try:
        manifest = read_manifest(where, NO_FAMILY, kept.append, section)
    except IntarsiaError as error:
        return Headers(str(where), None, _with([*kept, first], error))
    return Headers(str(where), manifest, (first, *kept))


def _with(kept: Sequence[Complaint], last: IntarsiaError) -> tuple[Complaint, ...]:
    """The complaints and the error that ended the reading, which may be one of theirs."""
    file = last.path.name if last.path is not None else None
    is_known = str(last) in [str(complaint.error) for complaint in kept] or (
        last.kind in _LOST and any(c.error.kind in _LOST and file in c.files for c in kept)
    )
    return tuple(kept) if is_known else (*kept, Complaint(last))


def why_unfinished(path: PurePath) -> Fault | None:
    """Why a folder that should hold a checkpoint of any format holds none; the general formats first."""
    asked = (FORMATS[name].unfinished(path) for name in reversed([*FORMATS]))
    found = next(filter(None, asked), None)
    return fault_of(found) if found else None

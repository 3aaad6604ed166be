"""Which format a path has, and every format by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import PurePath
from typing import Any

from intarsia.collector import paused
from intarsia.errors import (
    ForeignNamesError,
    FormatError,
    IntarsiaError,
    SectionError,
    UnsafeError,
    UsageError,
    few,
)
from intarsia.family import adopt
from intarsia.format.added import added_formats
from intarsia.format.base import Format
from intarsia.format.built_in import BUILT_IN, LIVE, NAMES
from intarsia.format.complaint import Complain, Complaint, refuse
from intarsia.format.folder.foreign import NO_WEIGHTS, recognise
from intarsia.format.folder.inventory import with_files
from intarsia.format.folder.run_folder import FoundCheckpoint, find, is_checkpoint
from intarsia.format.folder.side_files import config_given
from intarsia.format.folder.stored_config import with_config_used
from intarsia.format.megatron.frame import METADATA, TRACKER, garbled_tracker, tracked_folder
from intarsia.format.naming.section import TOP
from intarsia.planning.inventory import Fate
from intarsia.planning.manifest import Manifest
from intarsia.state.names import is_state
from intarsia.store.address import named
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.headers_once import reading_headers
from intarsia.store.reading.lookup import (
    absolute,
    exists,
    given,
    is_file,
    is_folder,
    is_link,
    names_like,
    stamp_of,
)
from intarsia.store.reading.replaced import Stamps, unreplaced
from intarsia.store.stamp import Stamp, noting_stamps
from intarsia.store.writing.hidden_names import PARTIAL


class Formats(Mapping[str, Format]):
    """Every format by its name, imported when it is asked for."""

    def __getitem__(self, name: str) -> Format:
        return _load(name) if name in BUILT_IN else added_formats()[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*BUILT_IN, *added_formats()))

    def __len__(self) -> int:
        return len(BUILT_IN) + len(added_formats())


FORMATS = Formats()


@cache
def _load(name: str) -> Format:
    line = BUILT_IN[name]
    found: Format = getattr(import_module(f"intarsia.format.{line.module}"), line.name)()
    return found


def format_named(name: str) -> Format:
    """The format that a user names."""
    if not isinstance(name, str) or not (name in BUILT_IN or name in added_formats()):
        raise UsageError(f"unknown format {name!r}", hint=f"one of: {', '.join(sorted(FORMATS))}")
    return FORMATS[name]


def live_format() -> Format:
    """The format that live models are saved in."""
    return FORMATS[LIVE]


def names_of(kind: Callable[[Format], bool], last: str = "or") -> str:
    """The names of the formats of one kind, in words: `hf or dcp`."""
    names = [name for name in (*NAMES, *added_formats()) if kind(FORMATS[name])]
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


@reading_headers()
def format_of(path: PurePath) -> Format:
    """The format of a checkpoint, found from its content."""
    if not exists(path):
        lost = "is a link that leads to nothing" if is_link(path) else "does not exist"
        raise FormatError(f"{path} {lost}", hint=_from_the_hub(path))
    if any(part.endswith(PARTIAL) for part in absolute(path).parts):
        raise FormatError(
            f"{path} is a conversion that did not finish",
            hint="run the same `intarsia convert` again with --resume",
        )
    asked = _candidates(path)
    for place, name in enumerate(asked):
        if _detects(name, path):
            _refuse_two(path, name, asked[place + 1 :])
            return FORMATS[name]
    if others := [format for format in added_formats().values() if format.detect(path)]:
        if others[1:]:
            raise FormatError(
                f"{path} is claimed by several formats: {', '.join(x.name for x in others)}",
                hint="uninstall the packages of the formats that are wrong",
            )
        return others[0]
    raise _no_checkpoint(path)


def _from_the_hub(path: PurePath) -> str | None:
    """What to do where a path that is not there may be the name of a model on the hub."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(path)) or exists(path.parent):
        return None
    return f"for the hub's model of this name: hf download {path} --local-dir {path.name}"


def _detects(name: str, path: PurePath) -> bool:
    """Whether a path has this format; where it names a detector, the rest of its code is not loaded for that."""
    home, _, detector = BUILT_IN[name].detector.rpartition(".")
    if not home:
        return FORMATS[name].detect(path)
    found: bool = getattr(import_module(f"intarsia.format.{home}"), detector)(path)
    return found


def _candidates(path: PurePath) -> list[str]:
    """The formats whose code is worth loading for a path."""
    there = [each.name for each in names_like(path)]
    known = {
        marks: not marks or any(fnmatchcase(name, mark) for mark in marks for name in there)
        for marks in {line.marks for line in BUILT_IN.values()}
    }
    return [name for name, line in BUILT_IN.items() if known[line.marks]]


def misleading(path: PurePath, name: str) -> Iterator[Complaint]:
    """Files that should lead to a checkpoint of this format, or of any that is built in, and do not."""
    yield from garbled_tracker(path)
    yield from FORMATS[name].misleading(path)


def _refuse_two(path: PurePath, name: str, others: Sequence[str]) -> None:
    """Raise where a framework would read a checkpoint of another, more general format there."""
    beside = next(filter(None, (FORMATS[other].stray(path) for other in others)), "")
    if beside:
        raise FormatError(
            f"{path} holds two checkpoints, {name} and {beside}",
            hint="move one of them to a folder of its own, with the configuration",
        )


def _no_checkpoint(path: PurePath) -> FormatError:
    """What a path is that is not read, and what to do about it."""
    held = [p for p in names_like(path) if any(map(is_checkpoint, (p, *names_like(p))))]
    tracked = tracked_folder(path) if is_folder(path) else None
    if tracked is not None and held:
        lack = f"has no {METADATA}" if is_folder(tracked) else "is absent"
        return FormatError(
            f"{path / TRACKER} names {tracked.name}, which {lack}; present:"
            f" {few([p.name for p in held], 6)}",
            hint=f"restore it, or give the folder of another iteration, for example {held[-1]}",
        )
    found = recognise(path)
    if held and (found is None or found[0] != path or found[1] is NO_WEIGHTS):
        names = few([p.name for p in held], 6)
        return FormatError(
            f"{path} is not a checkpoint itself; there {'are' if len(held) > 1 else 'is'}"
            f" {len(held)} below it: {names}",
            hint=f"give the folder of one of them, for example {held[0]}",
        )
    if found is not None:
        where, kind = found
        verb = "holds" if is_folder(where) else "is"
        return FormatError(f"{where} {verb} {kind.name}; not read", hint=kind.next_step(where))
    return FormatError(
        f"{path} is not a checkpoint that Intarsia can read ({', '.join(sorted(FORMATS))})",
        hint="give the folder that holds .metadata, or the *.safetensors files",
    )


@reading_headers()
def find_checkpoint(path: str | PurePath) -> FoundCheckpoint:
    """The checkpoint that a path means: itself, or the one to take of a run's folder."""
    return find(given(path), _unfit)


def _unfit(path: PurePath) -> str | None:
    """Why a folder is not a complete checkpoint; None where it is one."""
    try:
        format_of(path).read(path, {"model_type": ""})
    except SectionError:
        return None  # whole, and the user is to say which of its models is meant
    except UnsafeError:
        raise
    except FormatError as error:
        return error.brief
    return None


def read_manifest(
    path: str | PurePath,
    config: str | PurePath | Mapping[str, Any] | None = None,
    complain: Complain = refuse,
    section: str | Sequence[str] | None = None,
) -> Manifest:
    """What a checkpoint holds, from its headers alone; `complain` may keep what is wrong with some.

    `section` names the model among several, and after a comma its optimizer.
    """
    if config is not None and not isinstance(config, Mapping):
        config = config_given(config)
    chosen, read = sections_in(section), dict[PurePath, Manifest]()

    def unfit(folder: PurePath) -> str | None:
        with suppress(IntarsiaError):
            read[folder] = _read(format_of(folder), folder, config, refuse, chosen)
            return None
        return _unfit(folder)

    with paused(), reading_headers(), noting_stamps() as seen, unreplaced(given(path)):
        found = find(given(path), unfit)
        format = format_of(found.path)
        manifest = read.get(found.path) or _read(format, found.path, config, complain, chosen)
        manifest = with_config_used(with_files(manifest, given(path), format))
        stamps = _stamps_of(manifest, seen)
        held = {str(root_of(manifest) / file) for file in stamps}
        # What was read and is none of its files any more, as a configuration that was removed.
        Stamps({path: then for path, then in seen.items() if path not in held}).check()
    notes = *manifest.notes, *found.notes
    return replace(manifest, given=str(path), chosen=found.notes, notes=notes, stamps=stamps)


def _read(
    format: Format,
    path: PurePath,
    config: Mapping[str, Any] | None,
    complain: Complain,
    chosen: tuple[str, ...],
) -> Manifest:
    """A checkpoint by its configuration; name by name where all names are asked for, and that is of one section alone."""
    try:
        return format.read(path, config, complain, chosen)
    except ForeignNamesError:
        if config is not None or chosen != (TOP,):
            raise
        return format.read(path, {}, complain, chosen)


def sections_in(section: str | Sequence[str] | None) -> tuple[str, ...]:
    """The sections that a user names."""
    named = section.split(",") if isinstance(section, str) else section or ()
    if not isinstance(named, Collection) or {*map(type, named)} - {str}:
        raise UsageError(
            f"a section is text, or several in a list, found {section!r}", hint="name one"
        )
    if "" in (found := tuple(name.strip() for name in named)):
        raise UsageError(
            f"a section without a name is asked for: {section!r}",
            hint=f"name one, give `{TOP}` for what lies in no section, or leave the option out",
        )
    return found


def _stamps_of(manifest: Manifest, seen: Mapping[str, Stamp]) -> dict[str, Stamp]:
    """The stamps of a checkpoint's files: as they were when their headers were read, or now."""
    root, headers = root_of(manifest), FORMATS[manifest.format].header_files
    read = (x.name for x in manifest.inventory if x.kind != "section" and x.fate is Fate.READ)
    sides = (side.name for side in manifest.sides if side.path in seen)
    files = {f: seen.get(str(root / f)) for f in (*manifest.files, *headers, *read, *sides)}
    now = {f: stamp_of(root / f) for f, then in files.items() if not then and is_file(root / f)}
    return {file: then for file, then in files.items() if then} | now


def root_of(manifest: Manifest) -> PurePath:
    """The folder that a checkpoint's files lie in."""
    path = named(manifest.path)
    return path if is_folder(path) else path.parent


def folder_of(manifest: Manifest) -> Folder:
    """The files of a checkpoint, to read from."""
    return Folder(root_of(manifest), manifest.in_memory_files, manifest.stamps)


def with_rules_of_transformers(manifest: Manifest) -> Manifest:
    """The manifest, its tensors named by the rules of the installed Transformers, if it has them."""
    if manifest.config is None or "model_type" not in manifest.config:
        return manifest
    stored = manifest.stored.values()
    config = adopt(manifest.config, {s.name: s.shape for s in stored if not is_state(s.name)})
    return read_manifest(manifest.given or manifest.path, config, section=manifest.section)

"""What `--overwrite` may remove: an old checkpoint, and never anybody's other files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from intarsia.checking.digests.digest import stored_digests
from intarsia.errors import IntarsiaError, UsageError, few
from intarsia.format.folder.side_files import DIGESTS
from intarsia.format.registry import FORMATS, format_named, read_manifest
from intarsia.planning.inventory import Role
from intarsia.planning.manifest import Manifest
from intarsia.store.address import named
from intarsia.store.reading.folder import read_file
from intarsia.store.reading.lookup import everything_in, is_file, is_folder, is_link
from intarsia.store.writing.old_contents import OldContents

_FRAME = {
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model",
    "sentencepiece.bpe.model", "chat_template.json", "chat_template.jinja",
    DIGESTS,
}  # fmt: skip
"""Files that frameworks write into a checkpoint under these names, beside those of its tensors."""
_OWN_ROLES = (Role.MODEL, Role.OPTIMIZER, Role.TRAINING)


def check_replaceable(path: PurePath, contents: OldContents) -> None:
    """Refuse to replace what holds anything but one checkpoint, by the names of the rest."""
    try:
        manifest = read_manifest(path, complain=lambda complaint: None)
    except IntarsiaError as error:
        error.raise_unless_fault()
        raise UsageError(
            f"{path} cannot be read as a checkpoint, so it is not overwritten: {error.brief}",
            hint="choose another destination, or remove it yourself",
        ) from error
    if not _is_itself(path, manifest):
        raise UsageError(
            f"{path} is a folder of checkpoints, {named(manifest.path).name} among them, so it is not overwritten",
            hint="give the folder of one checkpoint, or choose another destination",
        )
    own = set(_own_files(path, manifest))
    parents = {str(parent) for name in own for parent in PurePath(name).parents}
    other = [name for name in contents.files if name not in own]
    other += [f"{name}/" for name in contents.folders if name not in parents]
    if other:
        top = sorted({name.split("/")[0] + "/" * ("/" in name) for name in other if name})
        raise UsageError(
            f"{path} holds more than the checkpoint that may be overwritten: {few(sorted(other), 6)}",
            hint=f"move {few(top, 4)} away, or choose another destination",
        )


def _is_itself(path: PurePath, manifest: Manifest) -> bool:
    """Whether a path is the checkpoint that is read there; some formats put their files one folder below."""
    home = named(manifest.path)
    return home == path or (format_named(manifest.format).one_below and home.parent == path)


def _own_files(path: PurePath, manifest: Manifest) -> Iterator[str]:
    """The names below `path` of the files that make up a checkpoint."""
    if not is_folder(path):
        yield "."
        return
    home = named(manifest.path).relative_to(path)
    items = (i.name for i in manifest.inventory if i.kind == "file" and i.role in _OWN_ROLES)
    headers = {name for format in FORMATS.values() for name in format.header_files}
    frame = _FRAME | headers
    for name in (*manifest.files, *items, *frame):
        yield str(home / name)
    yield from frame
    yield from _recorded(path, manifest)


def _recorded(path: PurePath, manifest: Manifest) -> Iterator[str]:
    """The small files that came with the checkpoint, as far as they are still what they were."""
    try:
        attested = stored_digests(manifest)
    except IntarsiaError as error:
        error.raise_unless_fault()
        return
    for name, mark in attested.files.items() if attested else ():
        if not is_link(path / name) and is_file(path / name) and mark_of(path / name) == mark:
            yield name


def marks_beside(folder: PurePath, known: Iterable[str]) -> dict[str, str]:
    """Marks of the files of a folder that are not `known` by other means."""
    names = {str(p.relative_to(folder)): p for p in everything_in(folder) if is_file(p)}
    return {name: mark_of(p) for name, p in names.items() if name not in {*known}}


def mark_of(path: PurePath) -> str:
    """By which a small file is known again."""
    return hashlib.blake2b(read_file(path), digest_size=16).hexdigest()

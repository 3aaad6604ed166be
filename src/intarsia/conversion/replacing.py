"""What `--overwrite` may remove: an old checkpoint, and never a source or anybody's other files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from intarsia.checking.digests.digest import stored_digests
from intarsia.errors import IntarsiaError, UsageError
from intarsia.format.registry import read_manifest
from intarsia.format.side_files import DIGESTS
from intarsia.planning.inventory import Role
from intarsia.planning.manifest import Manifest
from intarsia.store.destination import Contents, look
from intarsia.store.looking import everything_in, exists, is_file, is_folder, is_link, real
from intarsia.store.naming import unreadable

_FRAME = {
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model",
    "sentencepiece.bpe.model", "chat_template.json", "chat_template.jinja",
    ".metadata", "metadata.json", "common.pt", "latest_checkpointed_iteration.txt",
    "model.safetensors.index.json", "optimizer/model.safetensors.index.json",
    "optimizer/entries.json", DIGESTS,
}  # fmt: skip
"""Files that frameworks write into a checkpoint under these names, beside those of its tensors."""
_ONE_BELOW = ("torch_dist", "fsdp_dtensor")
_OWN_ROLES = (Role.MODEL, Role.OPTIMIZER, Role.TRAINING)


def check_replaceable(path: Path, contents: Contents) -> None:
    """Refuse to replace what holds anything but one checkpoint, by the names of the rest."""
    try:
        manifest = read_manifest(path, complain=lambda complaint: None)
    except IntarsiaError as error:
        error.blame()
        raise UsageError(
            f"{path} cannot be read as a checkpoint, so --overwrite does not remove it: {error.brief}",
            hint="choose another destination, or remove it yourself",
        ) from error
    if not _is_itself(path, manifest):
        raise UsageError(
            f"{path} is a folder of checkpoints, {Path(manifest.path).name} among them, which --overwrite does not remove",
            hint="give the folder of one checkpoint, or choose another destination",
        )
    own = set(_own_files(path, manifest))
    parents = {str(parent) for name in own for parent in Path(name).parents}
    other = [name for name in contents.files if name not in own]
    other += [f"{name}/" for name in contents.folders if name not in parents]
    if other:
        top = sorted({name.split("/")[0] + "/" * ("/" in name) for name in other if name})
        shown = sorted(other)[:6]
        more = f" and {len(other) - 6} more" if len(other) > 6 else ""
        raise UsageError(
            f"{path} holds more than the checkpoint that --overwrite may remove: {', '.join(shown)}{more}",
            hint=f"move {_few(top)} away, or choose another destination",
        )


def _is_itself(path: Path, manifest: Manifest) -> bool:
    """Whether a path is the checkpoint that is read there; Megatron puts its files one folder below."""
    home = Path(manifest.path)
    return home == path or (manifest.format in _ONE_BELOW and home.parent == path)


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (" and the others" if len(names) > 4 else "")


def _own_files(path: Path, manifest: Manifest) -> Iterator[str]:
    """The names below `path` of the files that make up a checkpoint."""
    if not is_folder(path):
        yield "."
        return
    home = Path(manifest.path).relative_to(path)
    items = (i.name for i in manifest.inventory if i.kind == "file" and i.role in _OWN_ROLES)
    for name in (*manifest.files, *items, *_FRAME):
        yield str(home / name)
    yield from _FRAME
    yield from _recorded(path, manifest)


def _recorded(path: Path, manifest: Manifest) -> Iterator[str]:
    """The small files that came with the checkpoint, as far as they are still what they were."""
    try:
        attested = stored_digests(manifest)
    except IntarsiaError as error:
        error.blame()
        return
    for name, mark in attested.files.items() if attested else ():
        if not is_link(path / name) and is_file(path / name) and mark_of(path / name) == mark:
            yield name


def marks_beside(folder: Path, known: Iterable[str]) -> dict[str, str]:
    """Marks of the files of a folder that are not `known` by other means."""
    names = {str(p.relative_to(folder)): p for p in everything_in(folder) if is_file(p)}
    return {name: mark_of(p) for name, p in names.items() if name not in {*known}}


def mark_of(path: Path) -> str:
    """By which a small file is known again."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def check_sources(destination: Path, sources: Iterable[str], *, overwrite: bool) -> None:
    """Refuse a destination that holds a file which is read, by whatever links and mounts it is reached."""
    home = real(destination)
    inside = {_number(path) for path in everything_in(destination)} if overwrite else set()
    number = _number(destination) if exists(destination) else None
    above: dict[Path, bool] = {}
    for source in sources:
        to = real(Path(source))
        if to.parent not in above:
            parents = (to.parent, *to.parent.parents)
            above[to.parent] = home in parents or number in map(_number, parents)
        found = look(to)
        same = found is not None and (found.st_dev, found.st_ino) in inside
        if above[to.parent] or to == home or (same and found is not None and _is_last(found)):
            raise UsageError(
                f"{destination} holds the source: {to} is read",
                hint="choose another destination",
            )


def _is_last(found: os.stat_result) -> bool:
    """Whether a file has no other name, so that removing this one would lose it."""
    return found.st_nlink == 1 or bool(found.st_mode & 0o040000)


def _number(path: Path) -> tuple[int, int] | None:
    found = look(path)
    return None if found is None else (found.st_dev, found.st_ino)

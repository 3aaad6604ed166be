"""Which format a path has, and every format by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from intarsia.collector import paused
from intarsia.errors import FormatError, UsageError
from intarsia.family import adopt
from intarsia.format.base import Format
from intarsia.format.complaint import Complain, refuse
from intarsia.format.sides import read_config
from intarsia.planning.manifest import Manifest
from intarsia.store.local import Folder
from intarsia.store.looking import exists, given, is_file, is_folder, listed
from intarsia.store.staging import PARTIAL
from intarsia.store.stamp import Stamp, noting_stamps

_HEADERS = (".metadata", "model.safetensors.index.json")
"""Files that say what the others hold."""

_CLASSES = {
    "torch_dist": "TorchDist",
    "fsdp_dtensor": "FsdpDtensor",
    "dcp": "Dcp",
    "hf": "Hf",
}
"""Each format's class, in the file of its name; the more particular come first."""


class Formats(Mapping[str, Format]):
    """Every format by its name, imported when it is asked for."""

    def __getitem__(self, name: str) -> Format:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


FORMATS = Formats()


@cache
def _load(name: str) -> Format:
    module = import_module(f"intarsia.format.{name}")
    found: Format = getattr(module, _CLASSES[name])()
    return found


def format_named(name: str) -> Format:
    """The format that a user names."""
    if name not in _CLASSES:
        raise UsageError(f"unknown format {name!r}", hint=f"one of: {', '.join(sorted(_CLASSES))}")
    return FORMATS[name]


def format_of(path: Path) -> Format:
    """The format of a checkpoint, found from its content."""
    if not exists(path):
        raise FormatError(f"{path} does not exist")
    if any(part.endswith(PARTIAL) for part in path.absolute().parts):
        raise FormatError(
            f"{path} is a conversion that did not finish",
            hint="run the same `intarsia convert` again with --resume",
        )
    for name in _CLASSES if _may_be_sharded(path) else ("hf",):
        if FORMATS[name].detect(path):
            return FORMATS[name]
    raise FormatError(
        f"{path} is no checkpoint that Intarsia knows ({', '.join(sorted(_CLASSES))})",
        hint="give the folder that holds .metadata, or the *.safetensors files",
    )


def _may_be_sharded(path: Path) -> bool:
    """Whether anything hints at a format other than safetensors, so that its code is worth loading."""
    hints = (".metadata", "latest_checkpointed_iteration.txt", "iter_*", "release", "mp_rank_*")
    return any(listed(path, hint) for hint in hints)


def read_manifest(
    path: str | Path,
    config: str | Path | Mapping[str, Any] | None = None,
    complain: Complain = refuse,
) -> Manifest:
    """What a checkpoint holds, from its headers alone; `complain` may keep what is wrong with some."""
    where = given(path)
    if isinstance(config, (str, Path)):
        config = read_config(given(config))
    with paused(), noting_stamps() as seen:
        found = format_of(where).read(where, config, complain)
    return replace(found, stamps=_stamps_of(found, seen))


def _stamps_of(manifest: Manifest, seen: Mapping[str, Stamp]) -> dict[str, Stamp]:
    """The stamps of a checkpoint's files: as they were when their headers were read, or now."""
    root = root_of(manifest)
    files = {file: seen.get(str(root / file)) for file in (*manifest.files, *_HEADERS)}
    now = {f: Stamp.of(root / f) for f, then in files.items() if not then and is_file(root / f)}
    return {file: then for file, then in files.items() if then} | now


def root_of(manifest: Manifest) -> Path:
    """The folder that a checkpoint's files lie in."""
    path = Path(manifest.path)
    return path if is_folder(path) else path.parent


def folder_of(manifest: Manifest) -> Folder:
    """The files of a checkpoint, to read from."""
    return Folder(root_of(manifest), manifest.told, manifest.stamps)


def with_rules_of_transformers(manifest: Manifest) -> Manifest:
    """The manifest, its tensors named by the rules of the installed Transformers, if it has them."""
    if manifest.config is None or "model_type" not in manifest.config:
        return manifest
    adopt(manifest.config, {s.name: s.shape for s in manifest.stored.values()})
    return read_manifest(manifest.path, manifest.config)

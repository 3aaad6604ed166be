"""Which folders Megatron wrote, and which iteration of them is meant: asked of every folder of DCP, before more is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import PurePath

from intarsia.errors import FormatError, UnsupportedError
from intarsia.format.dcp.metadata import MAX_METADATA_BYTES
from intarsia.format.folder.foreign import MEGATRON, is_megatron_rank
from intarsia.format.megatron.frame import (
    COMMON_FILE,
    COMMON_OBJECT,
    FRAME_BYTES,
    METADATA,
    RELEASE,
    TRACKER,
    tracked_folder,
)
from intarsia.format.strict_json import parse_json
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import is_file, is_folder, names_like

BACKEND = "metadata.json"
_FSDP_KEYS = re.compile(
    rb"model\.(?:module\.)+(?:\w+\.)?(?:embedding\.word_|decoder\.(?:layers\.\d|final_)|output_layer\.)"
)
_OWN_NAMES = re.compile(
    rb"(?:\x8c.|X.{3}\x00)(?:decoder\.(?:layers|final_)|embedding\.word_embeddings\.)", re.DOTALL
)
"""Names of tensors as a pickle begins them: other formats put sections before them."""

_ITERATION = re.compile(r"^iter_(\d{7,})$")


def is_fsdp_dtensor(path: PurePath) -> bool:
    """Whether a folder is, or leads to, a checkpoint of Megatron-FSDP."""
    if not is_folder(path) or looks_like_megatron(path):
        return False
    return any(_has_fsdp_keys(folder) for folder in _candidates(path))


def looks_like_megatron(path: PurePath) -> bool:
    """Whether a folder is, or leads to, a checkpoint of Megatron's own formats."""
    return is_folder(path) and any(_is_torch_dist(p) or _is_legacy(p) for p in _candidates(path))


def find_torch_dist(path: PurePath) -> PurePath:
    """The folder with the tensors: the path itself, the tracked iteration, or the only one."""
    found = [p for p in _candidates(path) if _is_torch_dist(p)]
    if found:
        return _the_one(found, path)
    legacy = [p for p in _candidates(path) if _is_legacy(p)]
    if legacy:
        raise UnsupportedError(f"{legacy[0]} is {MEGATRON.name}", hint=MEGATRON.remedy)
    raise FormatError(f"{path} does not hold a torch_dist checkpoint")


def find_fsdp_dtensor(path: PurePath) -> PurePath:
    """The folder with the tensors: the path itself, the tracked iteration, or the only one."""
    found = [folder for folder in _candidates(path) if _has_fsdp_keys(folder)]
    if found:
        return _the_one(found, path)
    raise FormatError(f"{path} does not hold an fsdp_dtensor checkpoint")


def _the_one(found: Sequence[PurePath], path: PurePath) -> PurePath:
    """The only iteration; of several, nothing says which one is meant."""
    if len(found) > 1:
        raise FormatError(
            f"{path} holds {len(found)} checkpoints ({found[0].name} to {found[-1].name}) and no"
            f" {TRACKER}",
            hint="give the folder of one iteration",
        )
    return found[0]


def _candidates(path: PurePath) -> list[PurePath]:
    """The folders that may hold the tensors: the path, else the tracked one, else all."""
    if is_file(path / METADATA) or _is_legacy(path):
        return [path]
    tracked = tracked_folder(path)
    if tracked is not None:
        return [tracked]
    return [p for p in names_like(path) if is_folder(p) and _ITERATION.match(p.name)]


def _has_fsdp_keys(folder: PurePath) -> bool:
    """Whether a folder's keys are Megatron-FSDP's: they stand in the metadata as they are."""
    if not is_file(folder / METADATA):
        return False
    with Folder(folder) as files:
        return _FSDP_KEYS.search(files.read_all(METADATA, MAX_METADATA_BYTES)) is not None


def _is_legacy(folder: PurePath) -> bool:
    return any(map(is_megatron_rank, names_like(folder, "mp_rank_*")))


def _is_torch_dist(folder: PurePath) -> bool:
    if not is_file(folder / METADATA):
        return False
    return _backend(folder) == "torch_dist" or _has_frame(folder)


def _has_frame(folder: PurePath) -> bool:
    """Whether only Megatron writes such a folder, whatever its `metadata.json` says: its common file,
    or in an iteration's folder its common object beside tensors under Megatron's own names.
    """
    if is_file(folder / COMMON_FILE):
        return True
    if not _ITERATION.match(folder.name) and folder.name != RELEASE:
        return False
    with Folder(folder) as files:
        data = files.read_all(METADATA, MAX_METADATA_BYTES)
    # What came out of such a folder into one of Megatron-FSDP's has objects of these names beside tensors of other ones.
    own = _OWN_NAMES.search(data) is not None and _FSDP_KEYS.search(data) is None
    return own and COMMON_OBJECT.encode() in data


def check_backend(folder: Folder) -> None:
    """Raise where `metadata.json`, by which Megatron knows its checkpoints, does not name this one."""
    name = _backend(folder.root)
    if name == "torch_dist":
        return
    named = "names no backend" if name is None else f"names the backend {name!r}"
    said = named if folder.has(BACKEND) else "is absent"
    raise FormatError(
        f"{folder.root / BACKEND} {said}, and the folder holds Megatron's common state:"
        " it is a torch_dist checkpoint that Megatron cannot load",
        hint="restore the file: " + backend_file().decode(),
        kind="malformed",
        path=folder.root / BACKEND,
    )


def backend_file() -> bytes:
    """The `metadata.json` by which Megatron knows a checkpoint."""
    return json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}).encode()


def _backend(folder: PurePath) -> str | None:
    try:
        with Folder(folder) as files:
            said = parse_json(files.read_all(BACKEND, FRAME_BYTES), str(folder / BACKEND))
    except FormatError:
        return None
    return said.get("sharded_backend") if isinstance(said, dict) else None

"""The folder that accelerate's `save_state` writes under FSDP: two DCP checkpoints that are one.

DIR/pytorch_model_fsdp_0/   .metadata  __<rank>_0.distcp
DIR/optimizer_0/            .metadata  __<rank>_0.distcp
DIR/scheduler.bin  random_states_<rank>.pkl  custom_checkpoint_0.pkl
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from intarsia.errors import FormatError
from intarsia.format.complaint import Complain, Complaint
from intarsia.format.megatron.frame import METADATA
from intarsia.format.torch_file.inert import Inert
from intarsia.store.reading.lookup import is_file, is_folder, names_like

if TYPE_CHECKING:
    from intarsia.format.dcp.metadata import Metadata

MODEL_PART = "pytorch_model_fsdp_"
OPTIMIZER_PART = "optimizer_"
PARTS = re.compile(rf"({MODEL_PART}|{OPTIMIZER_PART})\d+")


def is_accelerate(path: PurePath) -> bool:
    """Whether a folder holds a model that accelerate saved with DCP."""
    parts = (p for p in names_like(path, f"{MODEL_PART}*") if PARTS.fullmatch(p.name))
    return any(is_folder(p) and is_file(p / METADATA) for p in parts)


def model_subfolders(path: PurePath, complain: Complain) -> list[str]:
    """The subfolders of the one model and its optimizers."""
    found = [p.name for p in names_like(path) if PARTS.fullmatch(p.name) and is_folder(p)]
    models = [name for name in found if name.startswith(MODEL_PART)]
    if len(models) > 1:
        raise FormatError(
            f"{path} holds {len(models)} models: {', '.join(models)}",
            hint=f"give the folder of one of them, for example {path / models[0]}",
        )
    whole = list(models)
    for part in found:
        if part in models:
            continue
        if is_file(path / part / METADATA):
            whole.append(part)
            continue
        error = FormatError(
            f"{path / part} has no {METADATA}, which is written last: the save did not finish",
            hint=f"use an earlier checkpoint, or only the weights from {path / models[0]}",
            kind="metadata-missing",
        )
        complain(Complaint(error, (f"{part}/{METADATA}",)))
    return whole


def saved_apart(parts: Mapping[str, Metadata]) -> Iterator[str]:
    """What is to be said of parts that torch saved into folders of different names: those are of two saves."""
    homes = {part: home for part, metadata in parts.items() if (home := _home(metadata))}
    if len({*homes.values()}) > 1:
        listed = ", ".join(f"{part} into {home}" for part, home in homes.items())
        yield f"the parts were saved into different folders ({listed}): they may be of different steps"


def _home(metadata: Metadata) -> str:
    """The folder that a part was saved into, as its metadata names it; "" where it names none."""
    said = metadata.extra.get("storage_meta")
    at = said.fields.get("checkpoint_id") if isinstance(said, Inert) else None
    if isinstance(at, Inert):
        at = "/".join(word for word in at.args if isinstance(word, str))
    return PurePath(at).parent.name if isinstance(at, str) else ""


def below(part: str, metadata: Metadata) -> Metadata:
    """The metadata of a subfolder, its files named from the folder above."""
    tensors = {
        name: replace(
            record, chunks=tuple(replace(c, file=f"{part}/{c.file}") for c in record.chunks)
        )
        for name, record in metadata.tensors.items()
    }
    objects = {n: replace(o, file=f"{part}/{o.file}") for n, o in metadata.objects.items()}
    return replace(metadata, tensors=tensors, objects=objects)

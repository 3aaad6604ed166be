"""The sound checkpoints that the exploits damage: one tensor each, in every format."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any
from zlib import crc32

from intarsia.dtypes import BY_NAME
from intarsia.format.dcp.metadata import Metadata, TensorRecord
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.format.hf.safetensors_header import make_header
from intarsia.format.torch_file.torch_frame import frame
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk

F32 = BY_NAME["F32"]
NAME = "model.norm.weight"


def header(rows: dict[str, Any], data: bytes = b"") -> bytes:
    """A safetensors file with this header, whatever it says."""
    text = json.dumps(rows).encode()
    return len(text).to_bytes(8, "little") + text + data


def hf(folder: Path, **files: Any) -> Path:
    """A Hugging Face folder of one tensor; `files` are added, dots spelled as two underscores."""
    folder.mkdir(parents=True)
    data = make_header([(NAME, F32, (4,))], {}) + bytes(16)
    (folder / "model.safetensors").write_bytes(data)
    for name, content in files.items():
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name.replace("__", ".")).write_bytes(raw)
    return folder


def blob(shape: tuple[int, ...] = (4,)) -> bytes:
    """One tensor as DCP stores it."""
    size = 4
    for n in shape:
        size *= n
    wrap, data = frame(F32, shape), bytes(size)
    return wrap.head + data + wrap.tail(crc32(data))


def dcp(folder: Path, metadata: bytes | None = None, data: bytes | None = None) -> Path:
    """A DCP folder of one tensor, its metadata or its data replaced by others."""
    folder.mkdir(parents=True)
    stored = blob() if data is None else data
    (folder / "__0_0.distcp").write_bytes(stored)
    if metadata is None:
        chunk = Chunk(Box((0,), (4,)), "__0_0.distcp", 0, len(stored))
        record = TensorRecord(NAME, F32, (4,), (chunk,))
        metadata = write_metadata(Metadata({NAME: record}, {}, {NAME: (NAME,)}, {}))
    (folder / ".metadata").write_bytes(metadata)
    return folder


def torch_dist(folder: Path, common: bytes | None = None) -> Path:
    """A Megatron-LM folder of one tensor, with a common state."""
    inner = dcp(folder / "iter_0000001")
    (inner / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (inner / "common.pt").write_bytes(common or pickle.dumps({"iteration": 1}, 2))
    (folder / "latest_checkpointed_iteration.txt").write_text("1")
    return folder


def metadata_of(**records: TensorRecord) -> bytes:
    """The metadata of these tensors."""
    return write_metadata(Metadata(records, {}, {name: (name,) for name in records}, {}))

"""The small files of a checkpoint folder: configuration, tokenizer, licence, and the like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intarsia.errors import FormatError
from intarsia.planning.manifest import Side

DIGESTS = "intarsia-digests.json"
"""What the tensors of a checkpoint amount to; it is of this checkpoint alone and travels nowhere."""

MAX_SIDE_BYTES = 256 << 20
_WEIGHTS = (
    ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".ckpt",
    ".distcp", ".metadata", ".gguf", ".h5", ".msgpack", ".onnx", ".tmp", ".lock",
)  # fmt: skip


def side_files(root: Path) -> tuple[Side, ...]:
    """The files of a folder that are no weights, in order of their names."""
    found = []
    for path in sorted(root.iterdir()):
        if not path.is_file() or path.name.endswith(_WEIGHTS) or path.name[0] == ".":
            continue
        if path.name == DIGESTS:
            continue
        if path.stat().st_size <= MAX_SIDE_BYTES:
            found.append(Side(path.name, str(path)))
    return tuple(found)


def config_of(root: Path) -> Mapping[str, Any] | None:
    """The model configuration that lies in a folder, if one does."""
    path = root / "config.json"
    return read_config(path) if path.is_file() else None


def read_config(path: Path) -> Mapping[str, Any]:
    """A model's `config.json`."""
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise FormatError(f"{path} is not a JSON object, so it is no model configuration")
    return config

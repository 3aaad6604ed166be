"""Which format a path has, and every format by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intarsia.collector import paused
from intarsia.errors import FormatError, UsageError
from intarsia.format.base import Format
from intarsia.format.dcp import Dcp
from intarsia.format.hf import Hf
from intarsia.format.sides import read_config
from intarsia.planning.manifest import Manifest

FORMATS: Mapping[str, Format] = {f.name: f for f in (Dcp(), Hf())}


def format_named(name: str) -> Format:
    """The format that a user names."""
    if name not in FORMATS:
        raise UsageError(f"unknown format {name!r}", hint=f"one of: {', '.join(sorted(FORMATS))}")
    return FORMATS[name]


def format_of(path: Path) -> Format:
    """The format of a checkpoint, found from its content."""
    if not path.exists():
        raise FormatError(f"{path} does not exist")
    for candidate in FORMATS.values():
        if candidate.detect(path):
            return candidate
    raise FormatError(
        f"{path} is no checkpoint that Intarsia knows ({', '.join(sorted(FORMATS))})",
        hint="give the folder that holds .metadata, or the *.safetensors files",
    )


def read_manifest(
    path: str | Path, config: str | Path | Mapping[str, Any] | None = None
) -> Manifest:
    """What a checkpoint holds, from its headers alone."""
    where = Path(path)
    if isinstance(config, (str, Path)):
        config = read_config(Path(config))
    with paused():
        return format_of(where).read(where, config)

"""What headers of safetensors files say beside their tensors: torchao keeps its weights' classes there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from intarsia.errors import FormatError
from intarsia.format.folder.side_files import HEADERS
from intarsia.format.hf.dcp_shards import OF_WRITER
from intarsia.format.strict_json import parse_json
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import is_file

ONE_MODEL = "intarsia.one_model"
"""A key that says: names that look like those of several models are one model's."""

_OURS = ("format", ONE_MODEL, *OF_WRITER)
"""Keys that every writer sets itself."""


@dataclass
class HeaderMetadata:
    """The metadata of all files as one; `disputed` are keys to which files give different texts."""

    texts: dict[str, str] = field(default_factory=dict)
    disputed: set[str] = field(default_factory=set)
    one_model: bool = False

    def add(self, metadata: Mapping[str, str]) -> None:
        self.one_model |= ONE_MODEL in metadata
        for key, text in metadata.items():
            if key not in _OURS and self.texts.setdefault(key, text) != text:
                self.disputed.add(key)

    @property
    def agreed(self) -> dict[str, str]:
        return {key: text for key, text in self.texts.items() if key not in self.disputed}

    def notes(self) -> Iterator[str]:
        if self.disputed:
            yield (
                f"{len(self.disputed)} keys of the headers' metadata differ between files and are left out:"
                f" {', '.join(sorted(self.disputed)[:4])}"
            )


def kept_metadata(root: PurePath) -> dict[str, str]:
    """What a sharded checkpoint keeps of the headers that it was made from."""
    if not is_file(root / HEADERS):
        return {}
    with Folder(root) as folder:
        found = parse_json(folder.read_all(HEADERS), str(root / HEADERS))
    if not isinstance(found, dict) or not all(type(text) is str for text in found.values()):
        raise FormatError(f"{root / HEADERS} is not an object of texts")
    return found


def as_file(metadata: Mapping[str, str]) -> dict[str, bytes]:
    """The file that keeps them, where there is anything to keep."""
    return {HEADERS: (json.dumps(dict(metadata), indent=1) + "\n").encode()} if metadata else {}

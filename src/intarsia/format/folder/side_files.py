"""The small files of a checkpoint folder: configuration, tokenizer, licence, and the like."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from intarsia.dtypes import BY_TORCH, DType
from intarsia.errors import FormatError, UnsafeError, UsageError
from intarsia.format.strict_json import parse_json
from intarsia.planning.inventory import Fate
from intarsia.planning.manifest import Manifest, SideFile
from intarsia.store.address import named
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import (
    exists,
    given,
    is_file,
    is_folder,
    is_link,
    itself,
    real,
)

DIGESTS = "intarsia-digests.json"
"""What the tensors of a checkpoint amount to; it is of this checkpoint alone and travels nowhere."""

HEADERS = "safetensors_metadata.json"
"""What the headers of safetensors files say beside their tensors: kept by formats that have none."""

CONFIG = "config.json"
MAX_SIDE_BYTES = 256 << 20
MAX_CONFIG_BYTES = 16 << 20
_RESTORE = "restore it, or remove what has its name and give the configuration with --config"


def check_sides(sides: Sequence[SideFile]) -> None:
    """Raise where a small file is a link out of its checkpoint: a copy would give another's away.

    A folder of the hub's cache consists of links into the `blobs` beside its snapshots.
    """
    for side in sides:
        path = named(side.path)
        if not is_link(path):
            continue
        home = real(path.parents[side.name.count("/")])
        homes = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
        to = real(path)
        if not any(to.is_relative_to(each) for each in homes):
            raise UnsafeError(
                f"{path} is a link to {to}, which is outside of the checkpoint; it is not copied",
                hint="replace the link by the file if it belongs to the model, or remove the link",
            )


def leaving_out(src: Manifest, files: Collection[str], why: str) -> Manifest:
    """The manifest with these files left out of what is copied, for a reason."""
    items = (
        replace(i, fate=Fate.LEFT_OUT, why=why) if i.kind == "file" and i.name in files else i
        for i in src.inventory
    )
    sides = (side for side in src.sides if side.name not in files)
    return replace(src, inventory=tuple(items), sides=tuple(sides))


def config_in_folder(root: PurePath) -> Mapping[str, Any] | None:
    """The model configuration that lies in a folder; None where nothing has its name."""
    path = root / CONFIG
    if itself(path) is None:
        return None
    if is_file(path):
        return read_config(path, _RESTORE)
    raise FormatError(
        f"{path} is there and no file that can be read"
        + (": the link leads to nothing" if is_link(path) else ""),
        hint=_RESTORE,
        kind="file-missing",
    )


def config_given(path: str | PurePath) -> Mapping[str, Any]:
    """The configuration that a user names: a `config.json`, or the folder that has one."""
    at = given(path)
    at = at / CONFIG if is_folder(at) else at
    if not exists(at):
        raise UsageError(
            f"the configuration {at} does not exist",
            hint="give the path of a config.json, or of the folder that has one",
        )
    config = read_config(at)
    if "peft_type" in config:
        raise UsageError(
            f"{at} is the configuration of a PEFT adapter, not of a model",
            hint="put it into the folder of the adapter as adapter_config.json, and leave --config out",
        )
    return config


def read_config(path: PurePath, hint: str | None = None) -> Mapping[str, Any]:
    """A model's `config.json`, or a file like it."""
    with Folder(path.parent) as folder:
        if folder.size(path.name) > MAX_CONFIG_BYTES:
            raise FormatError(
                f"{path} has more than {MAX_CONFIG_BYTES:,} bytes, which no configuration has"
            )
        config = parse_json(folder.read_all(path.name), str(path), hint=hint, unique=False)
    if not isinstance(config, dict):
        raise FormatError(
            f"{path} is not a JSON object, so it is no model configuration", hint=hint
        )
    return config


_NAMED = re.compile(r'("(?:torch_)?dtype"\s*:\s*")(?:torch\.)?(?P<name>\w+)(")')


def with_dtype(text: str, dtype: DType) -> str:
    """The text of a configuration with another type, every other character as it was.

    >>> from intarsia.dtypes import BY_NAME
    >>> with_dtype('{"torch_dtype":  "float32", "vocab_size": 7}', BY_NAME["BF16"])
    '{"torch_dtype":  "bfloat16", "vocab_size": 7}'
    """

    def renamed(found: re.Match[str]) -> str:
        known = BY_TORCH.get(found["name"])
        return f"{found[1]}{dtype.torch}{found[3]}" if known and known.floating else found[0]

    return _NAMED.sub(renamed, text)

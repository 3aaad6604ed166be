"""Every parser of bytes that a checkpoint gives, with sound files for it to start from."""

from __future__ import annotations

import atexit
import base64
import io
import json
import pickle
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from attacks import sound
from intarsia.cli.output import printable
from intarsia.family import table_for
from intarsia.format.dcp_metadata import read_metadata
from intarsia.format.hf import INDEX
from intarsia.format.megatron_common import archive, plain
from intarsia.format.megatron_config import config_from_arguments
from intarsia.format.sides import read_config
from intarsia.format.torch_zip import read_crc, read_object, read_payload
from intarsia.format.unpickle import load_inert
from intarsia.formats import read_manifest
from tests.family.configs import CASES

CORPUS = Path(__file__).parent / "corpus"
_PLACE = Path(tempfile.mkdtemp(prefix="intarsia-fuzz-"))
atexit.register(shutil.rmtree, _PLACE, ignore_errors=True)


@dataclass(frozen=True)
class Parser:
    """A parser and the sound files that its mutations start from."""

    name: str
    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]

    def corpus(self) -> list[bytes]:
        """The sound files, small exploits, and whatever the fuzzer has written down."""
        kept = sorted((CORPUS / self.name).glob("*")) if (CORPUS / self.name).is_dir() else []
        return [*self.seeds, *(path.read_bytes() for path in kept)]


def _folder(name: str, make: Callable[[Path], object], file: str) -> Callable[[bytes], object]:
    """Read a whole checkpoint of which one file is replaced."""
    root = _PLACE / name
    make(root)

    def read(data: bytes) -> object:
        (root / file).write_bytes(data)
        found = read_manifest(root)
        return printable(f"{found.notes} {found.problems}"), found.parameters, found.sources

    return read


def _archive(data: bytes) -> object:
    def at(start: int, size: int) -> bytes:
        return data[start : start + size]

    payload = read_payload(at, len(data), "here")
    return payload, read_crc(at, len(data), payload, "here")


def _common(data: bytes) -> object:
    return plain(read_object(data, "here"))


def _metadata(data: bytes) -> object:
    found = read_metadata(data, "here")
    return config_from_arguments({"num_attention_heads": 2}, found, [])


def _config(data: bytes) -> object:
    path = _PLACE / "config.json"
    path.write_bytes(data)
    table = table_for(read_config(path))
    return table and [table.dialects["megatron"][name] for name in table.dialects["megatron"]]


def _saved(value: object) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def _entries(root: Path) -> None:
    sound.hf(root)
    (root / "optimizer").mkdir()


def _seeds_of(name: str, make: Callable[[Path], object], file: str) -> bytes:
    make(_PLACE / name)
    return (_PLACE / name / file).read_bytes()


def _parsers() -> list[Parser]:
    values = {"args": Namespace(lr=0.1, sizes=[1, (2, 3)], kind=torch.float32), "iteration": 7}
    header = _seeds_of("seed-hf", sound.hf, "model.safetensors")
    metadata = _seeds_of("seed-dcp", sound.dcp, ".metadata")
    index = json.dumps({"weight_map": {sound.NAME: "model.safetensors"}}).encode()
    entry = {"optimizer.lr": base64.b64encode(pickle.dumps(1)).decode()}
    models = tuple(json.dumps(c).encode() for c in CASES.values())
    return [
        Parser("header", _folder("hf", sound.hf, "model.safetensors"), (header,)),
        Parser("index", _folder("index", sound.hf, INDEX), (index,)),
        Parser("entries", _folder("entries", _entries, "optimizer/entries.json"), (json.dumps(entry).encode(),)),
        Parser("metadata", _folder("dcp", sound.dcp, ".metadata"), (metadata,)),
        Parser("metadata_alone", _metadata, (metadata,)),
        Parser("archive", _archive, (sound.blob(), _saved(torch.zeros(3, 2)), _saved(torch.zeros(4, 6)[:, 2:]))),
        Parser("common", _common, (archive(values), pickle.dumps(values, 2), _saved({"a": torch.zeros(2)}))),
        Parser("pickle", lambda data: repr(load_inert(data, "here")), (pickle.dumps(values), pickle.dumps(values, 2))),
        Parser("config", _config, models),
        Parser("backend", _folder("torch_dist", sound.torch_dist, "iter_0000001/metadata.json"), (b'{"sharded_backend": "torch_dist"}',)),
        Parser("tracker", _folder("tracker", sound.torch_dist, "latest_checkpointed_iteration.txt"), (b"1", b"release")),
    ]  # fmt: skip


PARSERS = _parsers()

"""Every parser of bytes that a stranger gives, with sound files for it to start from."""

from __future__ import annotations

import base64
import io
import json
import pickle
import shutil
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import torch

import intarsia
from attacks import models, sound
from intarsia import Options, converting
from intarsia.checking.digests.digest import stored_digests
from intarsia.cli.output import printable
from intarsia.dtypes import dtype_named
from intarsia.errors import IntarsiaError
from intarsia.family import table_for
from intarsia.format.dcp.metadata import read_metadata
from intarsia.format.folder.side_files import DIGESTS, read_config
from intarsia.format.hf.weight_sets import INDEX
from intarsia.format.megatron.common import archive
from intarsia.format.megatron.configuration.arguments_to_config import config_from_arguments
from intarsia.format.megatron.frame import COMMON_OBJECT
from intarsia.format.registry import format_named, read_manifest
from intarsia.format.torch_file.plain import plain
from intarsia.format.torch_file.torch_zip import read_crc, read_object, read_payload
from intarsia.format.torch_file.unpickle import load_inert
from intarsia.mesh import Mesh, Rule
from intarsia.opened.parameters import parameters_of
from intarsia.planning.manifest import Entry
from intarsia.quantity import bytes_in
from intarsia.report.safe import html, script
from intarsia.run.journal.keeping import Journal
from intarsia.store.writing.staging import Staging
from tests.family.configs import CASES

CORPUS = Path(__file__).parent / "corpus"
MAX_ELEMENTS = 100_000
Make = Callable[[Path], object]


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


def parsers_at(place: Path) -> list[Parser]:
    """Every parser, with the folder in which it may keep files."""
    return [*_Small(place).parsers(), *_Checkpoints(place).parsers()]


@dataclass(frozen=True)
class _Small:
    """The parsers of single files."""

    place: Path

    def parsers(self) -> list[Parser]:
        values = {"args": Namespace(lr=0.1, sizes=[1, (2, 3)], kind=torch.float32), "iteration": 7}
        self.place.mkdir(parents=True, exist_ok=True)
        metadata = (sound.dcp(self.place / "seed") / ".metadata").read_bytes()
        models = tuple(json.dumps(c).encode() for c in CASES.values())
        tensors = (torch.zeros(3, 2), torch.zeros(4, 6)[:, 2:], {"a": torch.zeros(2)})
        return [
            Parser("metadata_alone", _metadata, (metadata,)),
            Parser("archive", _archive, (sound.blob(), *map(_saved, tensors[:2]))),
            Parser("common", _common, (archive(values), pickle.dumps(values, 2), _saved(tensors[2]))),
            Parser("pickle", _pickle, tuple(pickle.dumps(values, p) for p in (5, 2, 0))),
            Parser("config", self.config, models),
            Parser("words", _words, (b"tp=2,fsdp=3", b"ep=4,etp=2,pp=3,cp=1,replicate=2", b"2.5GiB", b"bf16", b"hf")),
        ]  # fmt: skip

    def config(self, data: bytes) -> object:
        path = self.place / "config.json"
        path.write_bytes(data)
        table = table_for(read_config(path))
        return table and [table.dialects["megatron"][name] for name in table.dialects["megatron"]]


def _archive(data: bytes) -> object:
    def at(start: int, size: int) -> bytes:
        return data[start : start + size]

    payload = read_payload(at, len(data), "here")
    return payload, read_crc(at, len(data), payload, "here")


def _common(data: bytes) -> object:
    return plain(read_object(data, "here"))


def _pickle(data: bytes) -> object:
    return repr(load_inert(data, "here"))


def _metadata(data: bytes) -> object:
    found = read_metadata(data, "here")
    return config_from_arguments({"num_attention_heads": 2}, found)


def _words(data: bytes) -> object:
    """What is written on the command line; each word is given to everything that takes one."""
    text = data.decode("utf-8", "surrogateescape")
    shown = printable(text)
    assert not any(ord(c) < 32 and c != "\n" for c in shown), shown
    assert "<" not in html(text) + script(text)
    problems = []
    for read in (bytes_in, dtype_named, format_named, _mesh):
        try:
            read(text)
        except IntarsiaError as error:
            problems.append(error)
    if len(problems) == 4:
        raise problems[0]
    return problems


def _mesh(text: str) -> object:
    mesh = Mesh.parse(text)
    return mesh.boxes((7, 5), Rule(tp=1)) if mesh.size <= 64 else str(mesh)


def _saved(value: object) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


@dataclass
class _Checkpoints:
    """Parsers of whole checkpoints, each of which has one file replaced."""

    place: Path
    made: list[Parser] = field(default_factory=list)

    def parsers(self) -> list[Parser]:
        index = json.dumps(
            {"metadata": {"total_size": 16}, "weight_map": {sound.NAME: "model.safetensors"}}
        )
        entry = {"optimizer.lr": base64.b64encode(pickle.dumps(1)).decode()}
        self.add("header", sound.hf, "model.safetensors")
        self.add("header_of_a_model", lambda p: models.hf(p, state=False), "model.safetensors")
        self.add("index", sound.hf, INDEX, index.encode())
        self.add("entries", _with_folder, "optimizer/entries.json", json.dumps(entry).encode())
        self.add("optimizer", models.hf, "optimizer/model.safetensors")
        self.add("metadata", sound.dcp, ".metadata")
        self.add("distcp", sound.dcp, "__0_0.distcp")
        self.add("backend", sound.torch_dist, "iter_0000001/metadata.json")
        self.add("tracker", sound.torch_dist, "latest_checkpointed_iteration.txt", b"1", b"release")
        self.add("run_config", _bridged, "iter_0000001/run_config.yaml")
        for to in ("torch_dist", "fsdp_dtensor"):
            for config in (True, False):
                name = f"{to}_metadata" + ("" if config else "_alone")
                self.add(name, lambda p, t=to, c=config: models.converted(p, t, config=c), "iter_0000001/.metadata")  # type: ignore[misc]  # fmt: skip
            self.add(f"{to}_distcp", lambda p, t=to: models.converted(p, t), "iter_0000001/__0_0.distcp")  # type: ignore[misc]  # fmt: skip
        self.add("buckets", models.buckets, "iter_0000001/.metadata")
        self.add("common_file", lambda p: models.converted(p, "torch_dist", config=False), "iter_0000001/common.pt")  # fmt: skip
        self.add_entry("common_entry", "torch_dist", COMMON_OBJECT)
        self.add_entry("args_entry", "fsdp_dtensor", "args")
        self.add("digests", lambda p: models.converted(p, "dcp"), DIGESTS, then=_digests)
        self.add_journal()
        return self.made

    def add(self, name: str, make: Make, file: str, *sound_files: bytes, then: Make | None = None) -> None:  # fmt: skip
        root = self.place / name
        make(root)
        path = root / file
        files = sound_files or (path.read_bytes(),)

        def read(data: bytes) -> object:
            path.write_bytes(data)
            return then(root) if then else self.use(root, crc32(data))

        self.made.append(Parser(name, read, files))

    def add_entry(self, name: str, to: str, entry: str) -> None:
        """An entry that DCP keeps as bytes: the metadata goes along with its length."""
        root = self.place / name
        home = models.converted(root, to, config=False)
        (home / "common.pt").unlink(missing_ok=True)
        models.with_entry(home, entry)
        found = models.metadata_at(home)
        file = found.objects[entry].file

        def read(data: bytes) -> object:
            (home / file).write_bytes(data)
            found.objects[entry] = Entry(entry, file, 0, len(data))
            models.write(home, found)
            return self.use(root, crc32(data))

        self.made.append(Parser(name, read, ((home / file).read_bytes(),)))

    def add_journal(self) -> None:
        src, dst = models.hf(self.place / "journal-src", state=False), self.place / "journal"
        job = converting.job(src, Options(to="dcp", workers=1))
        arrangement, staging = job.arrange(), Staging(dst)
        with suppress(_StoppedError):
            intarsia.convert(src, dst, to="dcp", workers=1, progress=_stop)
        files = {p.name: p.read_bytes() for p in staging.journal.iterdir()}

        def reader(file: str) -> Callable[[bytes], object]:
            def read(data: bytes) -> object:
                for name, held in files.items():
                    (staging.journal / name).write_bytes(data if name == file else held)
                journal = Journal(staging, job.wanted.targets)
                found = journal.find()
                done = found and journal.prove(found, arrangement)
                return done and (done.nbytes, done.losses, done.sums, done.ranges)

            return read

        for name, file in (("journal", "job"), ("journal_records", "0-0")):
            self.made.append(Parser(name, reader(file), (files[file],)))

    def use(self, root: Path, lot: int = 0) -> object:
        """Read a checkpoint's headers; with some lots plan, examine or convert all of it as well."""
        found = read_manifest(root)
        said = printable(f"{found.notes} {found.problems}"), parameters_of(found), found.sources
        if found.family is None and found.format not in ("hf", "dcp"):
            return said
        if lot % 2 == 0:
            intarsia.plan(root, to="dcp", mesh="tp=2", workers=1)
        if lot % 8 or sum(x.size for x in found.logical.values()) > MAX_ELEMENTS:
            return said
        examined = printable(repr(intarsia.verify(root, workers=1).as_json()))
        if lot % 16 == 0:
            out = self.place / "out"
            shutil.rmtree(out, ignore_errors=True)
            intarsia.convert(root, out, to="hf", workers=1)
        return said, examined


class _StoppedError(Exception):
    pass


def _stop(done: int, total: int) -> None:
    if done:
        raise _StoppedError


def _digests(root: Path) -> object:
    return stored_digests(read_manifest(root))


def _with_folder(root: Path) -> None:
    sound.hf(root)
    (root / "optimizer").mkdir()


def _bridged(root: Path) -> None:
    home = models.converted(root, "torch_dist", config=False)
    (home / "common.pt").write_bytes(archive({"iteration": 1}))
    found = models.metadata_at(home)
    found.objects.pop(COMMON_OBJECT)
    models.write(home, found)
    lines = ["model:", "  num_attention_heads: 2", "  num_query_groups: 1", "  moe_router_topk: 1", "  gated_linear_unit: true"]  # fmt: skip
    (home / "run_config.yaml").write_text("\n".join(lines) + "\n")

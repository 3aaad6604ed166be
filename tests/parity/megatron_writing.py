"""Conversion to `torch_dist` for the tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intarsia import conversion, formats
from intarsia.family import Param, Table
from intarsia.format.megatron_keys import torch_dist_rows
from intarsia.format.torch_dist import TorchDist
from intarsia.mesh import Mesh
from intarsia.planning.manifest import Manifest
from intarsia.run.budget import Budget
from intarsia.targets import Wish

if "torch_dist" not in formats.FORMATS:
    formats.FORMATS = {"torch_dist": TorchDist(), **formats.FORMATS}  # type: ignore[misc]


@dataclass
class Padded(TorchDist):
    """The format with a vocabulary padded as Megatron-LM pads it in training."""

    pad_to: int

    def rows(self, table: Table, dialect: str, mesh: Mesh, spec: str) -> Sequence[Param]:
        return torch_dist_rows(table, mesh, spec=spec, pad_to=self.pad_to)


@contextmanager
def registered(writer: TorchDist) -> Iterator[None]:
    known: Any = formats.FORMATS
    before = known["torch_dist"]
    known["torch_dist"] = writer
    try:
        yield
    finally:
        known["torch_dist"] = before


def read(path: Path, config: Mapping[str, Any] | None = None) -> Manifest:
    return formats.read_manifest(path, config)


def write_torch_dist(
    source: Path,
    to: Path,
    mesh: str = "",
    *,
    config: Mapping[str, Any] | None = None,
    spec: str = "te",
    pad_to: int | None = None,
) -> None:
    """Convert a checkpoint."""
    wish = Wish("torch_dist", Mesh.parse(mesh), spec=spec)
    with registered(TorchDist() if pad_to is None else Padded(pad_to)):
        job = conversion.prepare(source, wish, Budget.of(), config=config)
        conversion.carry_out(job, to)

"""Conversion to `torch_dist` for the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from intarsia.conversion.job import prepare
from intarsia.conversion.running import carry_out
from intarsia.family import Param, Table
from intarsia.format import registry as formats
from intarsia.format.megatron.keys import padded, torch_dist_rows
from intarsia.format.megatron.torch_dist.checkpoint import TorchDist
from intarsia.format.request import Request
from intarsia.mesh import Mesh
from intarsia.planning.manifest import Manifest
from intarsia.run.budget import Budget


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
    """Convert a checkpoint; `pad_to` pads the vocabulary as Megatron-LM does in training."""

    def rows(self: TorchDist, table: Table, dialect: str, mesh: Mesh, spec: str) -> Sequence[Param]:
        return [_padded(row, (pad_to or 1) * mesh.tp) for row in torch_dist_rows(table, spec)]

    def _padded(row: Param, step: int) -> Param:
        shape = row.layout.shape
        return padded(row, (-(-shape[0] // step) * step, *shape[1:])) if pad_to and shape else row

    request = Request("torch_dist", Mesh.parse(mesh), spec=spec)
    with patch.object(TorchDist, "rows", rows):
        carry_out(prepare(source, request, Budget.of(), config=config), to)

"""Every family onto every mesh: the plan is proven, without a byte of data."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from intarsia.conversion.targets import targets_for
from intarsia.dtypes import BY_NAME
from intarsia.family import table_for
from intarsia.format.request import Request
from intarsia.mesh import Box, Mesh
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored
from intarsia.planning.planner import make_plan
from tests.family.configs import CASES

BF16 = BY_NAME["BF16"]
MESHES = [
    Mesh(tp=tp, etp=etp, ep=ep, pp=pp)
    for tp, etp, ep, pp in itertools.product((1, 2, 4), (1, 2), (1, 2, 4), (1, 2))
]


def imagined(config: dict[str, Any]) -> Manifest:
    """A checkpoint as on the hub, of which only the headers exist."""
    table = table_for(config)
    assert table is not None
    stored, at = {}, 0
    for row in table.dialects["hf"].values():
        if all(name in table.tied for name in row.layout.tensors):
            continue
        chunk = Chunk(Box.whole(row.layout.shape), "model.safetensors", at, 2 * row.layout.size)
        stored[row.name] = Stored(row.name, BF16, row.layout, (chunk,), row.rule, row.name)
        at += chunk.length_bytes
    logical = {
        name: Logical(name, table.logical[name], BF16)
        for s in stored.values()
        for name in s.layout.tensors
    }
    return Manifest("hf", "imagined", stored, logical, {}, table.family, config)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("to", ["torch_dist", "dcp"])
@pytest.mark.one_in(6)
def test_a_family_is_proven_on_every_mesh(name: str, to: str) -> None:
    src = imagined(CASES[name])
    for mesh in MESHES:
        wanted = targets_for(src, Request(to, mesh))
        plan = make_plan(
            src, wanted.targets, to=to, mesh=mesh, peak_memory_bytes=0, drop=dict(wanted.drop)
        )
        assert plan.proven, (str(mesh), plan.problems[:3])
        assert not plan.left_out

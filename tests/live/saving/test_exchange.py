"""What ranks say before a save: all of it arrives, and what they have in common is sent once."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from intarsia.dtypes import BY_NAME
from intarsia.errors import CoverageError, UsageError
from intarsia.live.saving.exchange import Statement, heard
from intarsia.live.saving.parts import HeldBox, HeldPart
from intarsia.live.saving.plan import SavePlan
from intarsia.mesh import Box, Mesh, Rule

F32 = BY_NAME["F32"]
TENSORS = {
    f"layers.{k}.{name}": (64, 3) if name == "w" else (5,) for k in range(40) for name in "wb"
}


def statements(mesh: Mesh) -> list[Statement]:
    """What each rank of a model says; the vectors are too short for all ranks to have a part."""
    everyone = tuple(range(mesh.size))
    found = []
    for rank in range(mesh.size):
        boxes = {name: mesh.box(shape, Rule(), rank) for name, shape in TENSORS.items()}
        parts = [
            (HeldPart(name, F32, TENSORS[name], box, everyone, torch.empty(0)), everyone)
            for name, box in boxes.items()
            if box is not None and box.size
        ]
        said = {"lr": b"1"}, {"rng": bytes([rank])}, {"model_type": "x"}, {"b": ("net",)}
        found.append(Statement.of(parts, *said))
    return found


def exchanged(stated: list[Statement]) -> tuple[list[Statement], list[bytes]]:
    digests = [each.digest for each in stated]
    return [each.said(digests, rank) for rank, each in enumerate(stated)], digests


@pytest.mark.parametrize(
    "mesh", [Mesh(fsdp=1), Mesh(fsdp=4), Mesh(fsdp=4, replicate=2), Mesh(fsdp=64)]
)
def test_the_first_rank_hears_what_every_rank_holds(mesh: Mesh) -> None:
    found = heard(*exchanged(statements(mesh)))
    for rank, each in enumerate(found):
        boxes = {name: mesh.box(shape, Rule(), rank) for name, shape in TENSORS.items()}
        assert each.boxes == [
            HeldBox(name, F32, TENSORS[name], box, tuple(range(mesh.size)))
            for name, box in boxes.items()
            if box is not None and box.size
        ]
        assert (each.entries, each.extra) == ({"lr": b"1"}, {"rng": bytes([rank])})
    plan = SavePlan.of(found)
    written = [
        (held.name, slot.box)
        for each, task in zip(found, plan.tasks, strict=True)
        for held, slot in zip(each.boxes, task.slots, strict=True)
        if slot is not None
    ]
    assert len(written) == len(set(written))
    sizes = dict.fromkeys(TENSORS, 0)
    for name, box in written:
        sizes[name] += box.size
    assert sizes == {name: torch.Size(shape).numel() for name, shape in TENSORS.items()}


def test_a_rank_that_lost_a_part_is_missed() -> None:
    found = heard(*exchanged(statements(Mesh(fsdp=4))))
    found[2].boxes.pop()
    with pytest.raises(CoverageError, match="does not tile it"):
        SavePlan.of(found)
    found = heard(*exchanged(statements(Mesh(fsdp=4))))
    first = found[0].boxes[0]
    found[1].boxes.append(HeldBox(first.name, F32, first.shape, Box((1, 0), (1, 3)), first.proof))
    with pytest.raises(CoverageError, match="overlap"):
        SavePlan.of(found)


def test_ranks_with_different_configurations_are_refused() -> None:
    found = heard(*exchanged(statements(Mesh(fsdp=4))))
    found[0] = replace(found[0], config=None)
    assert SavePlan.of(found).outline.config == {"model_type": "x"}
    found[2] = replace(found[2], config={"model_type": "y"})
    with pytest.raises(UsageError, match="model_type: 'x' on rank 1, 'y' on rank 2"):
        SavePlan.of(found)


def test_what_a_rank_sends_does_not_grow_with_the_ranks() -> None:
    few, many = (
        max(len(pickle.dumps(each)) for each in exchanged(statements(Mesh(fsdp=n)))[0])
        for n in (8, 64)
    )
    alone = len(pickle.dumps(exchanged(statements(Mesh(fsdp=1)))[0][0]))
    assert max(few, many) < alone / 3

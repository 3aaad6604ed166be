"""Every sentence of a diagnosis, carried out: what it predicts of B from A, element by element.

`untrue(a, b, comparison, config)` lists the statements that do not hold, and those of no known form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import torch

from intarsia.checking.pair.comparison import Comparison
from tests.faults.statements.differences import Told, difference_is_untrue
from tests.faults.statements.faults import faults_are_untrue
from tests.faults.statements.held import Config, Sides, unequal
from tests.faults.statements.places import Stored


def untrue(
    a: Mapping[str, torch.Tensor],
    b: Mapping[str, torch.Tensor],
    found: Comparison,
    config: Config | None,
    damaged: str = "",
) -> list[str]:
    """The statements of a comparison that do not hold; `damaged` is the side that was, where that is known."""
    sides = Sides.of(a, b, config, damaged)
    left, right = Stored.open(found.a), Stored.open(found.b)
    try:
        return [*_all(sides, found, left, right)]
    finally:
        left.checkpoint.close()
        right.checkpoint.close()


def _all(sides: Sides, found: Comparison, left: Stored, right: Stored) -> Iterator[str]:
    yield from _names(sides, found)
    told: dict[str, Told] = {}
    for d in found.different:
        result = difference_is_untrue(d, sides, left, right)
        told[d.tensor] = result
        yield from (f"{d.tensor}: {wrong}" for wrong in result.wrong)
    yield from faults_are_untrue(found, told, sides, left, right)
    for note in found.notes:
        if not re.fullmatch(r"`\S+` is tied and not stored in (A|B); compared with `\S+`", note):
            yield f"nobody can carry out the note: {note}"
    for each in found.beside:
        of_mesh = re.fullmatch(r"args\.(world_size|\w+_parallel_size)", each.name)
        if each.counts or (each.verdict == "different" and not of_mesh):
            yield f"nothing beside the tensors differs, and it says: {each}"
    for fault in found.damaged:
        yield f"nothing is damaged, and it says: {fault}"


def _names(sides: Sides, found: Comparison) -> Iterator[str]:
    """Which tensors are compared and differ, and how many elements they have."""
    shared = [n for n in sides.a if n in sides.b]
    differ = {
        n for n in shared
        if sides.a[n].shape != sides.b[n].shape
        or sides.a[n].dtype != sides.b[n].dtype
        or unequal(sides.a[n], sides.b[n]).any()
    }  # fmt: skip
    told = {d.tensor for d in found.different}
    for name in sorted(differ ^ told):
        yield f"{name} differs: {name in differ}, told: {name in told}"
    for said, mine, other in (
        (found.only_in_a, sides.a, sides.b),
        (found.only_in_b, sides.b, sides.a),
    ):
        if sorted(said) != sorted(n for n in mine if n not in other):
            yield f"only on one side: {said}"
    elements = sum(int(np.prod(sides.a[n].shape)) for n in shared)
    if (found.compared, found.elements) != (len(shared), elements):
        yield f"{found.compared} tensors of {found.elements} elements compared, {len(shared)} of {elements} are"
    if found.equal != (not differ and len(shared) == len(sides.a) == len(sides.b)):
        yield f"equal: {found.equal}"

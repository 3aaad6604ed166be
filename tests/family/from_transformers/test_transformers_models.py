"""The tables against models that Transformers builds and saves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intarsia.family import Table, table_for
from intarsia.layout import Layout
from tests.family.arrays import carried
from tests.family.configs import CASES
from tests.family.models import Arrays, Saved, save

VISION = ("visual.", "model.visual.", "vision_tower.", "multi_modal_projector.", "model.vision_tower.",
          "model.multi_modal_projector.")  # fmt: skip


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Table, Saved]:
    folder: Path = tmp_path_factory.mktemp("model")
    saved = save(CASES[request.param], folder)
    table = table_for(saved.config)
    assert table is not None
    return table, saved


def test_hf_rows_are_the_files_names_and_shapes(case: tuple[Table, Saved]) -> None:
    table, saved = case
    rows = table.dialects["hf"]
    found = {n: a.shape for n, a in saved.disk.items() if not n.startswith(VISION)}
    wanted = {
        name: row.layout.shape
        for name, row in rows.items()
        if name in found or not table.optional.issuperset(rows.operands(name))
    }
    assert wanted == found


def test_hf_module_rows_make_the_state_dict(case: tuple[Table, Saved]) -> None:
    table, saved = case
    logical = logical_arrays(table, saved.disk)
    rows = table.dialects["hf-module"]
    found = {n: a for n, a in saved.module.items() if not n.startswith(VISION)}
    assert set(rows) == set(found)
    for name, row in rows.items():
        np.testing.assert_array_equal(carried(row.layout, logical), found[name], err_msg=name)


def logical_arrays(table: Table, disk: Arrays) -> Arrays:
    """Logical tensors out of a file in the `hf` dialect."""
    out = {name: np.full(shape, np.nan, np.float32) for name, shape in table.logical.items()}
    for name, row in table.dialects["hf"].items():
        if name in disk:
            scatter(row.layout, disk[name], out)
    for name, twin in table.tied.items():
        if name not in disk:
            out[name] = out[twin]
    return out


def scatter(layout: Layout, stored: np.ndarray, out: Arrays) -> None:
    """The inverse of `carried`: put every stored element where it belongs."""
    ids = {name: np.arange(out[name].size).reshape(out[name].shape) for name in layout.tensors}
    first, start = {}, 0
    for name in layout.tensors:
        first[name], start = start, start + out[name].size
    index = carried(layout, {name: ids[name] + first[name] for name in ids}).reshape(-1)
    flat = np.full(start, np.nan, stored.dtype)
    flat[index] = stored.reshape(-1)
    for name in layout.tensors:
        part = flat[first[name] : first[name] + out[name].size].reshape(out[name].shape)
        held = ~np.isnan(part)
        out[name] = np.where(held, part, out[name])

"""`docs/how-to/add-a-family.md`, followed to the letter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from intarsia import family
from intarsia.layout import Layout, cover
from tests.family.arrays import carried
from tests.family.configs import DENSE, of
from tests.family.models import save

PAGE = Path(__file__).parents[2] / "docs/how-to/add-a-family.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


@pytest.fixture
def followed() -> Iterator[None]:
    scope: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), scope)
    yield
    family.unregister("hunyuan_v1_dense")


def test_the_file_is_short() -> None:
    assert len(BLOCKS[0].splitlines()) < 60


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize("bias", [False, True])
def test_the_family_works(bias: bool, tmp_path: Path) -> None:
    saved = save(of("hunyuan_v1_dense", DENSE, attention_bias=bias), tmp_path)
    table = family.table_for(saved.config)
    assert table is not None
    disk = {name: row.layout.shape for name, row in table.dialects["hf"].items()}
    assert disk == {name: array.shape for name, array in saved.disk.items()}
    for name, row in table.dialects["hf-module"].items():
        np.testing.assert_array_equal(carried(row.layout, saved.disk), saved.module[name])
    megatron = [row.layout for row in table.dialects["megatron"].values()]
    assert all(cover(Layout.of(n, s), megatron).exact for n, s in table.logical.items())


def test_the_family_is_gone_afterwards() -> None:
    assert family.table_for({"model_type": "hunyuan_v1_dense"}) is None

"""The map gives back every name that it was made of, however odd."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from intarsia.report.model_map import Cell, MapRow, map_of
from tests.report.made import HOSTILE

WORDS = st.sampled_from(
    [
        "layers",
        "layer",
        "h",
        "experts",
        "0",
        "1",
        "01",
        "*",
        "w",
        "optimizer",
        "exp_avg",
        "step",
        "",
    ]
)
NAMES = st.lists(WORDS, max_size=8).map(".".join) | st.text(max_size=12)


@given(st.lists(NAMES, unique=True, max_size=6))
def test_rows_and_cells_give_the_names_back(names: list[str]) -> None:
    rows, cells = map_of(names)
    assert [rows[c.row].name(c.layer, c.expert) for c in cells] == names


def test_hostile_names_come_back_too() -> None:
    rows, cells = map_of(HOSTILE)
    assert tuple(rows[c.row].name(c.layer, c.expert) for c in cells) == HOSTILE


def test_layers_and_experts_of_one_parameter_share_a_row() -> None:
    names = [f"model.layers.{k}.mlp.experts.{e}.up.weight" for k in range(3) for e in range(2)]
    rows, cells = map_of(names)
    assert rows == [MapRow("", ("model.layers.", ".mlp.experts.", ".up.weight"), True, True)]
    assert cells == [Cell(0, k, e) for k in range(3) for e in range(2)]


def test_optimizer_state_has_rows_of_its_kind() -> None:
    rows, _ = map_of(["layers.0.w", "optimizer.exp_avg.layers.0.w", "optimizer.exp_avg.layers.1.w"])
    assert [(row.kind, row.layered) for row in rows] == [("", True), ("exp_avg", True)]


def test_numbers_that_are_written_oddly_stay_as_they_are() -> None:
    rows, cells = map_of(["layers.01.w", "layers.1.w"])
    assert [spot.layer for spot in cells] == [None, 1]
    assert rows[0].words == ("layers.01.w",)

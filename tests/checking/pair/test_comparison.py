"""A comparison as a value: what counts for its verdict, and how it is put into words and JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest

from intarsia.checking.fault import Fault
from intarsia.checking.pair.change import Changes, ShapesDiffer, TensorChange
from intarsia.checking.pair.comparison import Comparison, Difference, next_step
from intarsia.checking.pair.non_tensors import NonTensor

SAME = Comparison("a", "b", 2, 8, (), (), ())
WEIGHT = Difference("w", 3, (0, 1), 0.5, "3 of 8 elements differ", "unexplained")
DAMAGE = Fault("checksum-wrong", ("w",), "A: x", "CRC-32 is wrong")


@pytest.mark.parametrize(
    "found",
    [
        replace(SAME, only_in_a=("w",)),
        replace(SAME, only_in_b=("w",)),
        replace(SAME, not_comparable=("w",)),
        replace(SAME, different=(WEIGHT,)),
        replace(SAME, damaged=(DAMAGE,)),
        replace(SAME, beside=(NonTensor("setting", "lr", "different", counts=True),)),
    ],
)
def test_any_difference_that_counts_is_one(found: Comparison) -> None:
    assert SAME.equal
    assert SAME
    assert not found.equal
    assert not found
    assert found.as_json()["equal"] is False


def test_what_differs_beside_the_tensors_counts_only_where_it_is_the_state_of_a_run() -> None:
    note = NonTensor("configuration", "config.json: rms_norm_eps", "different", "1 in A, 2 in B")
    found = replace(SAME, beside=(note,))
    assert found.equal
    assert str(note) == "different: configuration `config.json: rms_norm_eps`, 1 in A, 2 in B"
    assert str(replace(note, text="")) == "different: configuration `config.json: rms_norm_eps`"
    assert found.as_json()["beside"] == [
        {
            "part": "configuration",
            "name": "config.json: rms_norm_eps",
            "verdict": "different",
            "text": "1 in A, 2 in B",
            "counts": False,
        }
    ]


def test_printing_a_comparison_gives_the_verdict_and_what_it_is_for() -> None:
    assert str(SAME) == "equal: 2 tensors, 8 elements, bit by bit"
    setting = NonTensor("setting", "lr", "different", "1 in A, 2 in B", counts=True)
    found = replace(
        SAME,
        different=(WEIGHT,) * 9,
        only_in_b=("v",),
        beside=(setting, NonTensor("configuration", "config.json: use_cache", "different")),
        damaged=(DAMAGE,),
    )
    weight = "  w: 3 elements, first at [0, 1], largest gap 0.5; 3 of 8 elements differ"
    assert str(found).split("\n") == [
        "different: 9 of 2 tensors", *[weight] * 8, "  … and 1 more",
        "only in B: 1", "  v",
        "not equal beside the tensors: 1", "  different: setting `lr`, 1 in A, 2 in B",
        "faults: 1", "  checksum-wrong: CRC-32 is wrong - at A: x",
    ]  # fmt: skip


def test_printing_changes_gives_the_furthest_first() -> None:
    moved = (
        TensorChange("w", 8, 0.5, 0.25, 0.125, 0.99),
        TensorChange("ids", 8, 3**20, 1.0, 1.0, 0.0),
    )
    found = Changes(moved, (ShapesDiffer("v", (2, 3), (3, 2)),), ("u",))
    assert str(found).split("\n") == [
        "2 tensors, the furthest first",
        "  w: max abs 0.5, rms 0.25, relative 0.125, cosine 0.99",
        "  ids: max abs 3,486,784,401, rms 1, relative 1, cosine 0",
        "1 of unlike shapes", "  v [2, 3] in A, [3, 2] in B",
        "1 only in A", "  u",
    ]  # fmt: skip
    assert str(Changes(())) == "no tensor is in both"


def test_weights_that_were_rounded_are_not_called_equal_bit_by_bit() -> None:
    assert SAME.how == "bit by bit"
    assert replace(SAME, rounded=2).how.startswith("bit by bit except 2 weights")


@pytest.mark.parametrize(
    ("most", "words", "json"),
    [
        (1234567, "1,234,567", 1234567),
        (0.123456, "0.1235", 0.123456),
        (float("nan"), "nan", "nan"),
        (float("inf"), "inf", "inf"),
    ],
)
def test_the_largest_distance_is_an_exact_integer_or_four_digits(
    most: float, words: str, json: object
) -> None:
    found = replace(WEIGHT, max_abs=most)
    assert found.gap == words
    assert found.as_json()["max_abs"] == json


def test_faults_of_one_side_come_before_those_of_the_two() -> None:
    between = Fault("scaled", ("w",), "w", "B is A times 2")
    found = replace(SAME, damaged=(DAMAGE,), faults=(between,)).as_json()
    assert [fault["kind"] for fault in found["faults"]] == ["checksum-wrong", "scaled"]


@pytest.mark.parametrize(
    ("found", "advised"),
    [
        (replace(SAME, different=(WEIGHT,)), True),
        (SAME, False),
        (replace(SAME, different=(WEIGHT, replace(WEIGHT, kind="scaled"))), False),
        (replace(SAME, different=(WEIGHT,), only_in_b=("v",)), False),
        (replace(SAME, different=(WEIGHT,), not_comparable=("v",)), False),
        (replace(SAME, different=(WEIGHT,), damaged=(DAMAGE,)), False),
        (replace(SAME, different=(replace(WEIGHT, tensor="optimizer.exp_avg.w"),)), False),
    ],
)
def test_diff_is_advised_where_every_weight_differs_without_a_cause(
    found: Comparison, advised: bool
) -> None:
    assert bool(next_step(found)) is advised

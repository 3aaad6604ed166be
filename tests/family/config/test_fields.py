"""The fields of a configuration have the type and the size that they must have, or are named."""

from __future__ import annotations

from typing import Any

import pytest

from intarsia.errors import FamilyError
from intarsia.family.config.fields import Fields


def fields(**held: Any) -> Fields:
    return Fields("llama", {"model_type": "llama", **held})


def test_numbers_up_to_what_models_have_are_taken() -> None:
    held = fields(num_hidden_layers=10_000, vocab_size=1 << 31, layers=[0] * 10_000)
    assert held.number("num_hidden_layers") == 10_000
    assert held.number("absent", "vocab_size") == 1 << 31
    assert len(held.numbers("layers")) == 10_000
    assert held.number("absent", default=0) == 0


@pytest.mark.parametrize(("value", "why"), [
    (10_001, "is 10001, no model has more than 10,000"), (-1, "is -1, which is negative"),
    (True, "is True, not a whole number"), (2.0, "is 2.0, not a whole number"), ("2", "is '2', not a whole number"),
])  # fmt: skip
def test_any_other_number_of_layers_is_refused(value: Any, why: str) -> None:
    with pytest.raises(FamilyError, match=f"num_hidden_layers {why}"):
        fields(num_hidden_layers=value).number("num_hidden_layers")


def test_other_sizes_and_lists_have_bounds_too() -> None:
    with pytest.raises(FamilyError, match="vocab_size is 2147483649, no model has more"):
        fields(vocab_size=(1 << 31) + 1).number("vocab_size")
    for wrong in ([0] * 10_001, [0, True], 3, "ab"):
        with pytest.raises(FamilyError, match="not a list of layers"):
            fields(layers=wrong).numbers("layers")

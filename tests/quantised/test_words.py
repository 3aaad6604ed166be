"""What names say of the weights that they are parts of, asked of many names at once."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from intarsia.quantised.words import _WORDS, claims_among, claims_of, ends_in_word, tail_of

STEMS = ("", "a", "a.weight", "a._b", "a.quant_state", ".", "a.b\n", "a._weight")
NAMES = [
    stem + dot + word for stem, dot, word in product(STEMS, ("", ".", "_"), (*_WORDS, "weight"))
]


@given(st.lists(st.sampled_from(NAMES), max_size=6))
def test_many_names_say_what_each_says_by_itself(names: list[str]) -> None:
    assert claims_among(names) == one_by_one(names)


def test_every_name_says_the_same_in_company_of_its_like() -> None:
    for odd in (False, True):
        names = [name for name in NAMES if ("._" in name or ".quant_state." in name) == odd]
        assert len(names) > 100
        assert claims_among(names) == one_by_one(names)


def one_by_one(names: list[str]) -> list[object]:
    named = [n for n in names if ends_in_word(tail_of(n)) or ".quant_state." in n]
    return [claim for name in named for claim in claims_of(name)]

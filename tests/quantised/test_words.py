"""What names say of the weights that they are parts of, asked of many names at once."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from intarsia.dtypes import BY_NAME
from intarsia.planning.manifest import Logical
from intarsia.quantised.words import _AFTER, _BESIDE, _TORCHAO, Claim, by_last_word, claims_of

STEMS = ("", "a", "a.weight", "a._b", "a.quant_state", ".", "a.b\n", "a._weight")
NAMES = [
    stem + dot + word
    for stem, dot, word in product(STEMS, ("", ".", "_"), (*_AFTER, *_BESIDE, *_TORCHAO, "weight"))
]


@given(st.sets(st.sampled_from(NAMES), max_size=6))
def test_many_names_say_what_each_says_by_itself(names: set[str]) -> None:
    assert together(names) == one_by_one(names)


def test_every_name_says_the_same_in_company_of_its_like() -> None:
    assert together({*NAMES}) == one_by_one({*NAMES})


def one_by_one(names: set[str]) -> set[tuple[str, ...]]:
    return {said(name, claim) for name in names for claim in claims_of(name)}


def together(names: set[str]) -> set[tuple[str, ...]]:
    found = [*by_last_word(Logical(name, (), BY_NAME["F32"]) for name in sorted(names))]
    assert {s.name for group in found for s in group.tensors} == names
    return {
        said(s.name, claim._replace(of=of))
        for group in found
        for claim in group.claims
        for of, s in group.parts(claim).items()
    }


def said(name: str, claim: Claim) -> tuple[str, ...]:
    return name, claim.of, claim.word, claim.role

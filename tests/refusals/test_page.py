"""Each refusal is one clear error with a next step, and the page in the documents shows them all."""

from __future__ import annotations

import pytest

from tests.refusals.case import Case
from tests.refusals.page import PAGE, cases, text_of


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.title)
def test_a_refusal_reads_as_the_page_says_and_gives_a_next_step(case: Case) -> None:
    text = text_of(case)
    assert "\n  hint: " in text
    assert f"### {case.title}\n\n```\n{text}\n```\n" in PAGE.read_text(), (
        "python -m tests.refusals writes the page anew"
    )

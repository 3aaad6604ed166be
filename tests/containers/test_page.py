"""The matrix of containers in the documents is what really happens."""

from __future__ import annotations

import pytest

from tests.containers.containers import CONTAINERS
from tests.containers.page import PAGE, line, page, refusals, rows

AGAIN = "python -m tests.containers writes the page anew"


def test_the_quick_rows_of_the_matrix_hold() -> None:
    other = {each.title: each.elsewhere for each in CONTAINERS}
    text = PAGE.read_text()
    quick = tuple(each for each in CONTAINERS if each.quick)
    found = rows(quick, 2)
    assert len(found) == len(quick)
    for title, cells in found.items():
        assert line(title, cells, other[title]) in text, AGAIN
        assert refusals(title, cells) in text, AGAIN


@pytest.mark.slow
def test_the_whole_matrix_holds() -> None:
    assert page() == PAGE.read_text(), AGAIN

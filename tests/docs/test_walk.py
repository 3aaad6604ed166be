"""The page that lists the files of a conversion is true."""

from __future__ import annotations

from tests.docs.walk import PAGE, taken


def test_the_page_lists_the_files_that_a_conversion_goes_through() -> None:
    assert taken() == PAGE.read_text()

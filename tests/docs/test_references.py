"""The reference of commands and of Python is in step with the code."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

import intarsia
from tests.cli_reference import PAGE, page
from tests.versions import pins


@pytest.mark.skipif(
    version("typer") != pins()["typer"], reason="the page is as the pinned Typer says it"
)
def test_the_page_of_commands_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.cli_reference`"


def test_the_page_of_python_has_every_public_name() -> None:
    text = (PAGE.parent / "python.md").read_text()
    found = re.findall(r"^::: (.*)\.(\w+)$", text, re.M)
    assert {name for _, name in found} == set(intarsia.__all__) - {"__version__"}
    for home, name in found:
        assert getattr(intarsia, name).__module__ in (home, "intarsia.errors"), name


def test_the_citation_has_the_version() -> None:
    text = (PAGE.parents[2] / "CITATION.cff").read_text()
    assert f"\nversion: {intarsia.__version__}\n" in text

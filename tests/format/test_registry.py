"""What a user names: sections."""

from __future__ import annotations

from typing import Any

import pytest

from intarsia.errors import UsageError
from intarsia.format.registry import sections_in


@pytest.mark.parametrize("section", [5, b"model", ["model", 5], [None]], ids=repr)
def test_a_section_that_is_no_text_is_refused(section: Any) -> None:
    with pytest.raises(UsageError, match="a section is text, or several in a list, found"):
        sections_in(section)


@pytest.mark.parametrize("section", ["actor, critic", ["actor", "critic"], ("actor", "critic ")])
def test_sections_are_named_in_one_text_or_several(section: Any) -> None:
    assert sections_in(section) == ("actor", "critic")

"""Sizes in words: what is no number of bytes that a machine could have is refused."""

from __future__ import annotations

import pytest

from intarsia.errors import UsageError
from intarsia.quantity import bytes_in


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1XB", "1e9", "9" * 400, "9" * 5000, "99999999TiB"]
)
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        bytes_in(text)


@pytest.mark.parametrize(("text", "size"), [("0", 0), (" 1.5 KiB ", 1536), ("2k", 2048), ("3MB", 3_000_000)])  # fmt: skip
def test_a_size_is_bytes(text: str, size: int) -> None:
    assert bytes_in(text) == size

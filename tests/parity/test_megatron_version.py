"""Which Megatron-core the tests run on."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest


def source_of(file: str) -> str:
    """The text of a file of the Megatron-core that would be imported."""
    found = find_spec("megatron.core")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / file).read_text()


@pytest.mark.megatron
def test_the_package_that_is_imported_is_the_one_that_was_asked_for() -> None:
    said = source_of("package_info.py")
    numbers = re.findall(r"^(?:MAJOR|MINOR|PATCH) = (\d+)$", said, re.MULTILINE)
    asked = os.environ.get("MEGATRON_CORE", f"megatron-core=={version('megatron-core')}")
    assert asked == f"megatron-core=={'.'.join(numbers)}"

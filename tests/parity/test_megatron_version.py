"""Which Megatron-core the tests run on."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.megatron
def test_the_package_that_is_imported_is_the_one_that_was_asked_for() -> None:
    found = find_spec("megatron.core")
    assert found is not None
    assert found.origin is not None
    text = (Path(found.origin).parent / "package_info.py").read_text()
    numbers = [re.search(rf"^{word} = (\d+)$", text, re.MULTILINE) for word in NUMBERS]
    imported = ".".join(number[1] for number in numbers if number)
    asked = os.environ.get("MEGATRON_CORE", f"megatron-core=={version('megatron-core')}")
    assert asked == f"megatron-core=={imported}"


NUMBERS = ("MAJOR", "MINOR", "PATCH")

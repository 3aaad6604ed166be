"""The page of refusals: what a user reads, from running each case."""

from __future__ import annotations

import importlib
import pkgutil
import re
import tempfile
from itertools import groupby
from pathlib import Path

import tests.refusals
from intarsia import IntarsiaError
from tests.refusals.case import CASES, Case

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "refusals.md"
MACHINERY = ("case", "page", "test_page", "__main__")
HEAD = """# Refusals

What Intarsia refuses, and what it prints then. Each text below was produced by running the case in
[`tests/refusals/`](../../tests/refusals/); `python -m tests.refusals` writes this page again.
"""


def cases() -> list[Case]:
    """All cases, by area and title."""
    for found in pkgutil.iter_modules(tests.refusals.__path__):
        if found.name not in MACHINERY:
            importlib.import_module(f"tests.refusals.{found.name}")
    return sorted(CASES, key=lambda c: (c.area, c.title))


def text_of(case: Case) -> str:
    """What the user reads; the folder that the case was run in is left out of it."""
    with tempfile.TemporaryDirectory(prefix="refusal-") as made:
        folder = Path(made)
        try:
            case.provoke(folder)
        except IntarsiaError as error:
            text = str(error).replace(f"{folder}/", "").replace(str(folder), ".")
            return re.sub(r"/\S*refusal-\w+/?", "", text)
    raise AssertionError(f"{case.title!r} was not refused")


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for area, found in groupby(cases(), key=lambda c: c.area):
        parts.append(f"\n## {area.capitalize()}\n")
        for case in found:
            parts.append(f"\n### {case.title}\n\n```\n{text_of(case)}\n```\n")
    return "".join(parts)

"""The page on stores shows the store that passes the tests of behaviour, and what it shows runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import intarsia
from intarsia.demo_model import write_model
from tests.docs.test_snippets import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "add-a-store.md"


def test_the_file_of_the_page_is_the_store_of_the_tests() -> None:
    assert blocks(PAGE, "python")[0] == (ROOT / "tests/store/memory_store.py").read_text()


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "Qwen3-30B-A3B", seed=1)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": __name__}
    for code in blocks(PAGE, "python"):
        exec(compile(code, PAGE.name, "exec"), scope)
    assert intarsia.open(tmp_path / "qwen3-dcp").format == "dcp"

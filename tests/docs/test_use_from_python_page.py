"""The page on Python shows what runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from intarsia.cli.demo_model import write_model
from tests.docs.test_snippets import ROOT, blocks


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "Qwen3-30B-A3B", seed=1)
    monkeypatch.chdir(tmp_path)
    page, scope = ROOT / "docs" / "how-to" / "use-from-python.md", dict[str, Any]()
    for code in blocks(page, "python"):
        exec(compile(code, page.name, "exec"), scope)
    assert isinstance(scope["rows"], torch.Tensor)
    assert tuple(scope["rows"].shape) == (16, 96)
    assert scope["report"].changed

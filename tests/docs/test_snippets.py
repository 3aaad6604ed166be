"""What the documents show works as they show it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intarsia.demo_model import write_model

ROOT = Path(__file__).parents[2]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.S)


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "Qwen3-30B-A3B", seed=1)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(ROOT / "README.md", "python")
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert scope["plan"].proven  # type: ignore[attr-defined]


def test_the_example_of_resuming_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "Qwen3-30B-A3B", seed=1)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(ROOT / "docs" / "how-to" / "resume-a-conversion.md", "python")
    exec(compile(f"import intarsia\n{code}", "resume-a-conversion.md", "exec"), {})
    assert (tmp_path / "sharded" / ".metadata").is_file()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_between_files_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    absent = [link for link in links if not (ROOT / link).exists()]
    assert links
    assert not absent

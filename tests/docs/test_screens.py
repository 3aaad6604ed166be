"""The screens of the README are what the commands print."""

from __future__ import annotations

from pathlib import Path

from tests.docs.screens import README, shown, write_models


def test_the_readme_shows_what_the_commands_print(tmp_path: Path) -> None:
    write_models(tmp_path)
    text = README.read_text()
    assert text.count("```console") == 3
    assert shown(text, tmp_path) == text, "run `python -m tests.docs.screens`"

"""What the documents name is there: commands with their options, scripts, files, tests of their code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from intarsia.cli.typer_app import app
from tests.docs.test_snippets import ROOT, blocks

PAGES = sorted(
    path
    for folder in (".", "attacks", "design", "docs", "docs/how-to", "docs/reference")
    for path in (ROOT / folder).glob("*.md")
)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def code_in(page: Path) -> Iterator[str]:
    """Every span of code, and every line of a block of it."""
    text = page.read_text()
    for block in re.findall(r"^```.*?\n(.*?)^```", text, re.M | re.S):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


FOREIGN = ("deepspeed.", "verl.", "transformers.models.llama.")


@each_page
def test_commands_have_the_options_that_a_page_gives_them(page: Path) -> None:
    group = typer.main.get_command(app())
    shared = {word for option in group.params for word in option.opts}
    for line in code_in(page):
        found = re.match(r"(?:\$ )?intarsia (\w+)(.*)", line)
        if found is None:
            continue
        command = group.commands[found[1]]  # type: ignore[attr-defined]
        known = {w for option in command.params for w in (*option.opts, *option.secondary_opts)}
        assert set(re.findall(r"--[a-z-]+", found[2])) <= known | shared, line


@each_page
def test_modules_and_scripts_that_a_page_runs_are_there(page: Path) -> None:
    made = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for line in code_in(page):
        for module in re.findall(r"python -m ([\w.]+)", line):
            # A refusal may name a command of the framework that wrote the checkpoint.
            assert module.startswith(FOREIGN) or find_spec(module), line
        for script in re.findall(r"python ([\w/]+\.py)", line):
            assert (ROOT / script).is_file(), line
        if found := re.match(r"make ([a-z-]+)", line):
            assert found[1] in made, line


@each_page
def test_code_that_a_page_shows_is_run_by_a_test(page: Path) -> None:
    if not blocks(page, "python"):
        return
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    assert any(page.name in path.read_text() for path in tests)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []

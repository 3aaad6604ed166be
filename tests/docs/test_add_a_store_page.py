"""The page on stores shows the store that passes the tests of behaviour, and what it shows runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import intarsia
from intarsia.cli.demo_model import write_model
from intarsia.errors import UsageError
from intarsia.store import registry
from tests.checkpoints import intarsia as cli
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


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's file in a package with the entry point that the page shows."""
    (line,) = blocks(PAGE, "toml")
    points = line.replace('[project.entry-points."intarsia.stores"]', "[intarsia.stores]")
    info = tmp_path / "site" / "memory_store-1.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "memory_store.py").write_text(blocks(PAGE, "python")[0])
    (info / "METADATA").write_text("Name: memory-store\nVersion: 1\n")
    (info / "entry_points.txt").write_text(points.replace('"', ""))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(registry, "_REGISTERED", {})
    registry._installed.cache_clear()
    yield tmp_path / "site"
    registry._installed.cache_clear()
    sys.modules.pop("memory_store", None)


@pytest.mark.usefixtures("installed")
def test_an_installed_store_is_known_to_the_command_line(tmp_path: Path) -> None:
    write_model(tmp_path / "model", seed=1)
    assert cli("convert", tmp_path / "model", "memory://there", "--to", "dcp").status == 0
    assert cli("verify", tmp_path / "model", "memory://there").status == 0
    assert "dcp" in cli("inspect", "memory://there").out
    assert "no store is registered for s3://" in cli("inspect", "s3://there").err


def test_a_package_that_cannot_be_loaded_is_named(installed: Path) -> None:
    (installed / "memory_store.py").write_text("import no_such_module")
    with pytest.raises(UsageError, match="memory:// cannot be loaded from memory_store:Memory"):
        intarsia.open("memory://there")


def test_two_packages_with_one_scheme_are_refused(installed: Path) -> None:
    info = installed / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: other\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[intarsia.stores]\nmemory = other:Store\n")
    both = "several packages have a store for memory://: memory_store:MemoryStore, other:Store"
    with pytest.raises(UsageError, match=both):
        intarsia.open("memory://there")

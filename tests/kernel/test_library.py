"""When the compiled library is used, and that all works without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRINT = "from intarsia.kernel.library import LIBRARY; print(LIBRARY is not None)"

needs_compiler = pytest.mark.skipif(
    not (shutil.which("cc") or shutil.which("gcc")), reason="there is no C compiler"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with nothing but the kernel, not built yet."""
    kernel = tmp_path / "src" / "intarsia" / "kernel"
    shutil.copytree(
        ROOT / "src" / "intarsia" / "kernel", kernel, ignore=shutil.ignore_patterns("*.so")
    )
    (kernel.parent / "__init__.py").touch()
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    return tmp_path


def run(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "INTARSIA_KERNEL": "", "PYTHONPATH": str(tree / "src"), **environment}
    return subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environ, capture_output=True, text=True
    )


@needs_compiler
def test_a_source_tree_is_built_without_a_warning_and_its_library_is_found(tree: Path) -> None:
    assert run(tree, "-c", PRINT).stdout == "False\n"
    built = run(tree, "hatch_build.py", CC=f"{shutil.which('cc') or 'gcc'} -Werror")
    assert (built.returncode, built.stderr) == (0, "")
    assert run(tree, "-c", PRINT).stdout == "True\n"
    assert run(tree, "-c", PRINT, INTARSIA_KERNEL="off").stdout == "False\n"


@needs_compiler
def test_a_library_of_other_sources_is_not_called(tree: Path) -> None:
    run(tree, "hatch_build.py")
    with open(tree / "src/intarsia/kernel/kernel.h", "a") as header:
        header.write("/* changed */\n")
    assert run(tree, "-c", PRINT).stdout == "False\n"
    asked = run(tree, "-c", PRINT, INTARSIA_KERNEL="required")
    assert "made from other sources; run `python hatch_build.py`" in asked.stderr


def test_without_a_compiler_nothing_is_built_and_python_is_used(tree: Path) -> None:
    built = run(tree, "hatch_build.py", CC="/no/such/compiler")
    assert built.returncode == 1
    assert "its Python is used instead" in built.stderr
    assert run(tree, "-c", PRINT).stdout == "False\n"


def test_a_library_that_is_damaged_is_not_used(tree: Path) -> None:
    file = tree / "src/intarsia/kernel" / f"kernel-{os.uname().machine}.so"
    file.write_bytes(b"no library")
    assert run(tree, "-c", PRINT).stdout == "False\n"

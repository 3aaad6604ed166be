"""Builds the kernel (`src/intarsia/kernel`) where a C compiler is; without one the package works in Python and NumPy.

In a source tree: `python hatch_build.py`, or any `pip install`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from runpy import run_path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    BuildHookInterface = object  # type: ignore[assignment, misc]

KERNEL = Path(__file__).resolve().parent / "src" / "intarsia" / "kernel"
FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O3",
    "-Wall",
    "-Wextra",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
]


def build(folder: Path = KERNEL) -> Path | None:
    """The library made of the sources in a folder; None, and a line that says why, where that cannot be."""
    said = run_path(str(folder / "library.py"))
    made, temporary = Path(said["FILE"]), Path(f"{said['FILE']}.{os.getpid()}")
    compiler = shlex.split(os.environ.get("CC", "")) or [
        shutil.which("cc") or shutil.which("gcc") or "cc"
    ]
    sources = sorted(map(str, folder.glob("*.c")))
    macro = f'-DMADE_FROM="{said["sources_hash"](str(folder))}"'
    command = [*compiler, *FLAGS, macro, "-o", str(temporary), *sources]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        temporary.replace(made)
    except (OSError, subprocess.CalledProcessError) as error:
        temporary.unlink(missing_ok=True)
        why = getattr(error, "stderr", "") or str(error)
        print(
            f"intarsia's kernel was not built, its Python is used instead: {why}", file=sys.stderr
        )
        return None
    return made


def platform_tag(library: Path) -> str:
    """What machines a library runs on, by the newest symbol of glibc that it asks for."""
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    asked = [tuple(map(int, v)) for v in re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())]
    if not machine.startswith("linux_") or not asked:
        return machine
    major, minor = max([*asked, (2, 17)])
    return f"manylinux_{major}_{minor}_{machine.removeprefix('linux_')}"


class KernelHook(BuildHookInterface):  # type: ignore[type-arg, misc]
    """Adds the library to a wheel, which is then one for this kind of machine and any Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        made = build()
        if made is not None and version != "editable":
            build_data["force_include"][str(made)] = f"intarsia/kernel/{made.name}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag(made)}"


if __name__ == "__main__":
    found = build()
    print(found or "not built")
    sys.exit(found is None)

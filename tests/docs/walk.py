"""The files that a conversion goes through, in a page: `python -m tests.docs.walk` takes the walk again and writes it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from contextlib import redirect_stdout, suppress
from inspect import CO_OPTIMIZED
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import intarsia
from intarsia.cli.main import main
from tests.fixtures import fixture

ROOT = Path(__file__).parents[2]
SOURCE = Path(intarsia.__file__).parent
PAGE = ROOT / "design" / "walk.md"

ROOMS = {
    "cli": "what was typed",
    "": "what Python and the command line share",
    "opened": "an open checkpoint: tensors, entries, main weights, padding",
    "conversion": "from what is asked for to a folder that is there",
    "format": "what the files of each kind mean, and where every byte of a new one goes",
    "family": "what the tensors of a model are",
    "quantised": "which of them hold packed numbers",
    "state": "names of optimizer state",
    "checking": "digests of what is written",
    "run": "the only room that moves bytes",
    "planning": "the plan and its proof, before any byte",
    "value": "how numbers come of what is stored",
    "mesh": "meshes of ranks, and the boxes in which they cut tensors",
    "layout": "arrays of places: pure arithmetic",
    "store": "names, reading and the transaction",
    "store/local": "the only room that touches a disk",
    "kernel": "what is done to bytes in C where that was built; this walk does without",
}
"""Every room on the way, the upper ones first, and what it is for."""


def walked() -> set[Path]:
    """The source files with a function that runs while the command line converts a small model."""
    seen: set[str] = set()

    def look(frame: FrameType, event: str, arg: object) -> None:
        # Only before Python 3.12 is a comprehension a call.
        comprehension = frame.f_code.co_name.startswith("<")
        if event == "call" and frame.f_code.co_flags & CO_OPTIMIZED and not comprehension:
            seen.add(frame.f_code.co_filename)

    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        words = ["--quiet", "convert", str(fixture("hf", "qwen3_moe")), f"{folder}/out"]
        threading.setprofile(look)
        sys.setprofile(look)
        try:
            with suppress(SystemExit):
                main([*words, "--to", "dcp", "--mesh", "tp=2,fsdp=3"])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return {Path(f).relative_to(SOURCE) for f in seen if Path(f).is_relative_to(SOURCE)}


def room_of(file: Path) -> str:
    """The room on the walk that a file is in."""
    folder = file.parent.as_posix().removeprefix(".")
    room = folder if folder in ROOMS else folder.partition("/")[0]
    assert room in ROOMS, f"{file} is in a room that the page does not have"
    return room


def page(files: set[Path]) -> str:
    """The walk as a page: room by room from above, with what each file says of itself."""
    lines = [
        "# The walk of a conversion",
        "",
        "`intarsia convert MODEL OUT --to dcp --mesh tp=2,fsdp=3`, from the command line to bytes on a disk: every file with a",
        "function that runs, room by room. No room imports one above it (`tests/test_house.py`). `python -m tests.docs.walk` takes",
        "the walk again.",
        "",
        "```mermaid",
        "flowchart TD",
        "    cli --> api[api, options] --> conversion",
        "    conversion -->|what is there| format --> family",
        "    conversion -->|the plan and its proof| planning --> layout",
        "    conversion -->|bytes| run --> value",
        "    format -->|headers| store --> local[store/local] --> disk[(disk)]",
        "    run -->|windows| store",
        "    run -->|sums| checking[checking/digests] -->|digests of what is written| conversion",
        "```",
    ]
    for room, what in ROOMS.items():
        inside = sorted(f for f in files if room_of(f) == room)
        if inside:
            lines += ["", f"## {f'`{room}/`' if room else 'Top'}: {what}", ""]
            lines += ["| file | adds |", "|---|---|"]
            lines += [f"| `{f.as_posix()}` | {_said_by(f)} |" for f in inside]
    return "\n".join(lines) + "\n"


def _said_by(file: Path) -> str:
    text = ast.get_docstring(ast.parse((SOURCE / file).read_text())) or ""
    return text.partition("\n\n")[0].replace("\n", " ").rstrip(".:")


def taken() -> str:
    """The page of a walk in a process of its own, where nothing is remembered from other conversions.

    It is taken without the kernel, so that it is the same on a machine that has no C compiler.
    """
    code = "from tests.docs.walk import page, walked; print(page(walked()), end='')"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "INTARSIA_KERNEL": "off"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


if __name__ == "__main__":
    PAGE.write_text(taken())

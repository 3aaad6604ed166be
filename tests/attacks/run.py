"""Run the exploits of themes against the commands, with little memory and time: `run THEME... [--all]`.

Without `--all` against one command each, in turn: what opens, what writes, what reads it all.

One line of JSON per exploit: the command, its status, its message, and what went wrong.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.checkpoints import intarsia

THEMES = ("code", "paths", "sizes", "pickles", "names", "megatron", "planted")
STEERING = re.compile(
    "[^\\n -~\u00a0-\U0010ffff]|[\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
MEMORY_BYTES = 1 << 30
CPU_SECONDS = 240


def exploits(theme: str) -> dict[str, Any]:
    """The exploits of a theme by name."""
    module = import_module(f"attacks.{theme}")
    return {
        name: found
        for name, found in vars(module).items()
        if getattr(found, "__module__", "") == module.__name__
        and not name.startswith("_")
        and "canary" in getattr(getattr(found, "__code__", None), "co_varnames", ())[1:2]
    }


def commands(src: Path, out: Path, every: bool) -> Iterator[list[object]]:
    yield ["inspect", src, "--tensors", "--html", src.parent / "page.html"]
    if (src.parent / ".out.intarsia-journal").exists():
        yield ["convert", src, out, "--to", "hf", "--resume"]
    yield ["convert", src, out, "--to", "hf"]
    yield ["verify", src]
    if every:
        yield ["plan", src, "--to", "dcp", "--mesh", "tp=2"]
        yield ["plan", src, "--to", "dcp", "--dialect", "hf-module"]
        yield ["convert", src, out, "--to", "dcp"]
        yield ["convert", src, out, "--to", "torch_dist"]
        yield ["verify", src, src]
        yield ["digest", src]


def warm_up() -> None:
    """Import everything now, so that it is not charged to an exploit."""
    intarsia("inspect", os.devnull)
    import torch  # noqa: F401
    import transformers  # noqa: F401


def run(theme: str, every: bool = True, limited: bool = True) -> Iterator[dict[str, Any]]:
    """What became of every exploit of a theme."""
    warm_up()
    if limited:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    for number, (name, make) in enumerate(exploits(theme).items()):
        with tempfile.TemporaryDirectory() as place:
            home = Path(place) / "home"
            home.mkdir()
            canary, src = Path(place) / "canary", home / "src"
            outside = Path(place) / "outside"
            (outside / "folder").mkdir(parents=True)
            for file in ("file", "folder/file"):
                (outside / file).write_text("precious")
            kept = {p: p.read_bytes() if p.is_file() else b"" for p in outside.rglob("*")}
            make(src, canary)
            before = {p.name for p in home.iterdir()}
            wrong, messages = [], []
            asked = [*commands(src, home / "out", every)]
            turn = slice(None) if every else slice(number % len(asked), None, len(asked))
            for k, words in enumerate(asked[turn]):
                answer = intarsia(*words)
                said = answer.err.strip()
                messages.append(
                    f"{words[0]} {answer.status} {said.splitlines()[0] if said else ''}"
                )
                if answer.status not in (0, 1, 2):
                    wrong.append(f"{words}: status {answer.status}")
                if "INTARSIA_DEBUG" in said or "Traceback" in said:
                    wrong.append(f"{words}: not foreseen: {said[:300]}")
                if answer.status == 2 and not said:
                    wrong.append(f"{words}: no message")
                page = (home / "page.html").read_text() if (home / "page.html").exists() else ""
                (home / "page.html").unlink(missing_ok=True)
                if "alert(1)</script>" in page or "<img src=x" in page:
                    wrong.append(f"{words}: a page that runs what a name says")
                if len(said) > 5000 or STEERING.search(said + answer.out + page):
                    wrong.append(f"{words}: a message that steers the terminal or never ends")
                if (home / "out").exists() and answer.status == 0:
                    leaked = [p for p in (home / "out").rglob("*") if p.is_symlink()]
                    secret = Path("/etc/passwd").read_bytes()
                    leaked += [
                        p for p in (home / "out").rglob("*.json") if p.read_bytes() == secret
                    ]
                    wrong += [f"{words}: {p} was carried out" for p in leaked]
                    os.rename(home / "out", Path(place) / f"done{k}")
            if kept != {p: p.read_bytes() if p.is_file() else b"" for p in outside.rglob("*")}:
                wrong.append("what lies outside was changed")
            if canary.exists():
                wrong.append("code was run")
            if extra := {p.name for p in home.iterdir()} - before:
                wrong.append(f"files were left: {sorted(extra)}")
        yield {"theme": theme, "exploit": name, "wrong": wrong, "messages": messages}


def run_apart(theme: str, every: bool) -> None:
    """Print what became of the exploits of a theme, from a process of its own that one may end."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS,) * 2)
    for row in run(theme, every):
        print(json.dumps(row), flush=True)
    os._exit(0)


if __name__ == "__main__":
    warm_up()
    for theme in sys.argv[1:]:
        if theme in THEMES:
            run_apart(theme, every="--all" in sys.argv)

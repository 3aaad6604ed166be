"""The screens of the README: `python -m tests.docs.screens` runs their commands again and rewrites them."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.numpy import load_file, save_file

from intarsia.cli.demo_model import write_model
from intarsia.cli.main import main

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
_SCREEN = re.compile(r"```console\n\$ (.*)\n(?:[^`]|`(?!``))*?```")


def write_models(folder: Path) -> None:
    """The model of the demo, one that lacks a tensor, and one whose experts are those of the first of four ranks."""
    write_model(folder / "model", seed=0)
    whole = load_file(folder / "model" / "model.safetensors")
    lost = "model.layers.1.mlp.experts.3.up_proj.weight"
    _copy(folder, "damaged", {name: t for name, t in whole.items() if name != lost})
    first = {name: re.sub(r"experts\.(\d+)", lambda m: f"experts.{int(m[1]) % 2}", name) for name in whole}  # fmt: skip
    _copy(folder, "converted", {name: whole[first[name]] for name in whole})


def _copy(folder: Path, name: str, tensors: dict[str, object]) -> None:
    (folder / name).mkdir()
    shutil.copy(folder / "model" / "config.json", folder / name)
    save_file(tensors, folder / name / "model.safetensors", metadata={"format": "pt"})


def shown(text: str, folder: Path) -> str:
    """`text` with what its commands print now, in a folder with those models."""

    def screen(found: re.Match[str]) -> str:
        printed = StringIO()
        words = shlex.split(found[1])[1:]
        with (
            chdir(folder),
            redirect_stdout(printed),
            redirect_stderr(printed),
            suppress(SystemExit),
        ):
            main(words)
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        return "\n".join([f"```console\n$ {found[1]}", *lines, "```"])

    return _SCREEN.sub(screen, text)


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        write_models(Path(scratch))
        README.write_text(shown(README.read_text(), Path(scratch)))

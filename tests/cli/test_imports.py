"""Commands that read headers start quickly: they import neither torch nor what it brings."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import intarsia
from intarsia.cli.main import main
from tests.checkpoints import llama_config, model, python, write_hf

CONFIG = llama_config()
HEAVY = ("torch", "transformers", "safetensors", "rich")

AFTER = """
import json, sys
try:
    {code}
except SystemExit as stop:
    assert not stop.code, stop.code
kept = sorted(name for name in {names!r} if name in sys.modules)
print("\\n" + json.dumps(kept))
"""


def imported(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of `names` are loaded after running `code` in a fresh interpreter."""
    done = python("-c", AFTER.format(code=code, names=names))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imports")
    write_hf(root / "hf", model(CONFIG), CONFIG)
    intarsia.convert(root / "hf", root / "dcp", to="dcp", mesh="tp=2")
    return root


def test_importing_the_library_is_light() -> None:
    assert imported("import intarsia", (*HEAVY, "numpy", "typer")) == []


def test_asking_for_help_is_light() -> None:
    code = 'from intarsia.cli.main import main; main(["--help"])'
    assert imported(code, ("torch", "transformers", "safetensors", "numpy")) == []


@pytest.mark.parametrize("source", ["hf", "dcp"])
@pytest.mark.parametrize(
    "words",
    [["inspect"], ["plan", "--to", "dcp", "--mesh", "tp=4"], ["plan", "--to", "hf"]],
    ids=["inspect", "plan-dcp", "plan-hf"],
)
@pytest.mark.one_in(3)
def test_reading_headers_does_not_import_torch(root: Path, source: str, words: list[str]) -> None:
    command = [words[0], str(root / source), *words[1:]]
    code = f"from intarsia.cli.main import main; main({command!r})"
    assert imported(code, ("torch", "transformers", "safetensors")) == []


def test_converting_without_a_cast_does_not_import_torch(root: Path, tmp_path: Path) -> None:
    command = ["convert", str(root / "hf"), str(tmp_path / "out"), "--to", "dcp", "--mesh", "tp=2"]
    code = f"from intarsia.cli.main import main; main({command!r})"
    assert imported(code, ("torch", "transformers")) == []


def test_a_digest_loads_neither_what_converts_nor_what_unpickles_nor_other_commands(
    root: Path,
) -> None:
    code = f"from intarsia.cli.main import main; main({['digest', str(root / 'hf')]!r})"
    others = ("conversion", "converting", "planning.planner", "format.torch_file.unpickle", "cli.verify")  # fmt: skip
    assert imported(code, (*HEAVY, "html", *(f"intarsia.{name}" for name in others))) == []


def test_a_process_that_ends_does_not_look_for_what_could_be_freed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(True))
    monkeypatch.setattr("sys.argv", ["intarsia", "--version"])
    usual = gc.get_threshold()
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    with pytest.raises(SystemExit):
        main(None)
    assert frozen == [], "triton would report what is left"
    monkeypatch.delitem(sys.modules, "triton")
    for arguments, told in ((["--version"], []), (None, [True])):
        with pytest.raises(SystemExit):
            main(arguments)
        assert frozen == told, "only the process of the command itself ends"
    assert gc.get_threshold() == usual
    assert capsys.readouterr().out.count("intarsia ") == 3


def test_a_small_command_ends_before_the_collector_runs(root: Path, tmp_path: Path) -> None:
    words = ["convert", str(root / "hf"), str(tmp_path / "out"), "--to", "dcp", "--mesh", "tp=2"]
    code = f"""
import gc, sys
from intarsia.cli.main import main
sys.argv[1:] = {words!r}
seen = []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
try:
    main()
except SystemExit as stop:
    gc.callbacks.clear()
    assert not seen and not stop.code, (seen, stop.code)
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


MEGATRON = ("format.megatron.common", "format.megatron.keys", "format.megatron.own_format")
UNUSED = {
    "convert": (
        "checking.digests.digest_steps", "checking.alone", "checking.diagnosis", "kernel.comparing", "kernel.surveying",
        "format.optimizer_state.groups_in_entries", *MEGATRON,
    ),
    "digest": ("conversion", "planning.planner", "store.local.transaction", "kernel.surveying", *MEGATRON),
    "verify": ("conversion", "checking.diagnosis", "checking.pair.pairs", "store.local.transaction", *MEGATRON),
    "verify-pair": ("conversion", "checking.diagnosis", "checking.pair.change", "store.local.transaction", *MEGATRON),
    "inspect": ("conversion", "checking", "run.sharing", "store.local.transaction", "kernel.surveying", *MEGATRON),
    "plan": ("checking", "conversion.running", "run.execute", "store.local.transaction", *MEGATRON),
}  # fmt: skip


@pytest.mark.parametrize("source", ["hf", "dcp"])
@pytest.mark.parametrize("command", UNUSED)
@pytest.mark.one_in(3)
def test_a_command_loads_only_what_it_needs(
    root: Path, tmp_path: Path, command: str, source: str
) -> None:
    words = [command.partition("-")[0], str(root / source)]
    words += [str(root / "hf")] if command == "verify-pair" else []
    words += [str(tmp_path / "out")] if command == "convert" else []
    words += ["--to", "dcp", "--mesh", "tp=2,fsdp=3"] if command in ("convert", "plan") else []
    code = f"from intarsia.cli.main import main; main({words!r})"
    ours = tuple(f"intarsia.{name}" for name in UNUSED[command])
    used = ("intarsia.kernel.comparing",) if source == "dcp" else ()
    names = (*HEAVY, "typer", "click", "subprocess", "argparse", *ours)
    assert imported(code, tuple(name for name in names if name not in used)) == []


def test_this_test_would_see_an_import() -> None:
    assert imported("import numpy", ("numpy",)) == ["numpy"]

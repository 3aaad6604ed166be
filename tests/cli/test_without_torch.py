"""Without torch a checkpoint is inspected, planned, converted, verified and digested; what needs torch says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia as library
from tests.checkpoints import llama_config, matrix, model, python, write_hf

CONFIG = llama_config()

WITHOUT = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import contextlib, io
import intarsia
from intarsia.cli.main import main

def run(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(words))
        except SystemExit as stop:
            return [stop.code, out.getvalue(), err.getvalue()]

def told(call):
    try:
        call()
    except intarsia.IntarsiaError as error:
        return [type(error).__name__, isinstance(error, ImportError), str(error)]
    return None

%s
assert "torch" not in sys.modules
"""


def without_torch(code: str) -> Any:
    """What a program prints, as JSON, where neither torch nor Transformers is installed."""
    done = python("-c", WITHOUT % code)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints of one folder: a model, another step of it, every element type."""
    root = tmp_path_factory.mktemp("without")
    write_hf(root / "a", model(CONFIG), CONFIG)
    write_hf(root / "b", {k: x * 1.5 for k, x in model(CONFIG).items()}, CONFIG)
    write_hf(root / "types", matrix() | {"w": torch.arange(6.0).reshape(2, 3)})
    return root


def test_every_command_works_on_every_road(root: Path, tmp_path: Path) -> None:
    code = f"""
r, t = {str(root)!r}, {str(tmp_path)!r}
print(json.dumps([
    run("inspect", r + "/a"),
    run("plan", r + "/a", "--to", "torch_dist", "--mesh", "tp=2"),
    run("convert", r + "/a", t + "/dcp", "--to", "dcp", "--mesh", "tp=2,fsdp=2"),
    run("convert", t + "/dcp", t + "/hf", "--to", "hf"),
    run("convert", r + "/types", t + "/types", "--to", "dcp", "--mesh", "fsdp=2"),
    run("convert", r + "/a", t + "/fp16", "--to", "dcp", "--dtype", "fp16"),
    run("verify", r + "/a", t + "/dcp"),
    run("verify", r + "/a", t + "/fp16"),
    run("verify", r + "/types", t + "/types"),
    run("verify", t + "/dcp"),
    run("verify", r + "/types"),
    run("verify", r + "/a", r + "/b"),
    run("digest", t + "/dcp"),
    run("diff", r + "/a", r + "/b"),
    run("explain", t + "/dcp", "model.norm.weight"),
    run("demo"),
]))
"""
    found = without_torch(code)
    assert [err for _, _, err in found] == [""] * len(found)
    assert "BF16 in A, F16 in B" in found[7][1]
    with_torch = tmp_path / "with-torch"
    library.convert(root / "a", with_torch, to="dcp", dtype="fp16")
    assert library.verify(with_torch, tmp_path / "fp16")
    assert [status for status, _, _ in found] == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0]


def test_what_needs_torch_says_so_and_gives_the_remedy(root: Path) -> None:
    code = f"""
r = {str(root)!r}
import numpy as np
x = intarsia.open(r + "/types")["w"]
def from_import():
    from intarsia import save
print(json.dumps([
    told(lambda: x[0]),
    told(lambda: x.dtype),
    told(lambda: intarsia.load),
    told(from_import),
    np.asarray(x).tolist(),
]))
"""
    *errors, numbers = without_torch(code)
    for name, is_import_error, text in errors:
        assert name == "MissingTorchError"
        assert is_import_error
        assert "needs torch, which is not installed\n  hint: pip install 'intarsia[torch]'" in text
    assert errors[2][2].startswith("intarsia.load needs torch")
    assert numbers == [[0, 1, 2], [3, 4, 5]]


def test_names_that_only_transformers_could_tell_are_carried_and_said_so(
    root: Path, tmp_path: Path
) -> None:
    config = CONFIG | {"model_type": "helium", "architectures": ["HeliumForCausalLM"]}
    src = write_hf(tmp_path / "src", {f"net.{n}": x for n, x in model(CONFIG).items()}, config)
    code = f"""
src, out = {str(src)!r}, {str(tmp_path / "out")!r}
print(json.dumps([run("convert", src, out, "--to", "hf"), run("verify", out)]))
"""
    for status, out, _ in without_torch(code):
        assert status == 0
        assert "whether Transformers finds the tensors by their names was not checked" in out
    assert not library.verify(tmp_path / "out")

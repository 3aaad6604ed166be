"""The page on formats: its code is a format, which goes every way that a checkpoint goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.errors import FormatError, UsageError
from intarsia.format import added
from tests.checkpoints import (
    assert_same,
    files_of,
    leftovers,
    llama_config,
    model,
    read_hf,
    write_hf,
)
from tests.checkpoints import intarsia as cli
from tests.docs.test_snippets import ROOT, blocks
from tests.faults.resume.interrupted import die_half_way
from tests.live.megatron_fsdp_cases import hf_with_optimizer

PAGE = ROOT / "docs" / "how-to" / "add-a-format.md"
CODE, SHOWN = blocks(PAGE, "python")
CONFIG = llama_config()
OPTIONS: dict[str, Any] = {"to": "npy", "mesh": "tp=2,fsdp=3", "workers": 1}


def followed() -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "npy_format"}
    exec(compile(CODE, str(PAGE), "exec"), scope)
    return scope


@pytest.fixture
def _registered() -> Iterator[None]:
    added.register(followed()["Npy"]())
    yield
    added.unregister("npy")


registered = pytest.mark.usefixtures("_registered")


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "hf", model(CONFIG), CONFIG)


def test_the_page_shows_what_runs(src: Path, tmp_path: Path) -> None:
    scope = followed() | {"model": src, "folder": tmp_path}
    try:
        exec(compile(SHOWN, str(PAGE), "exec"), scope)
    finally:
        added.unregister("npy")
    assert_same(read_hf(tmp_path / "back"), model(CONFIG))
    with pytest.raises(UsageError, match="unknown format 'npy'"):
        intarsia.plan(src, to="npy")


def test_the_format_is_short() -> None:
    assert len(CODE.splitlines()) < 140


@registered
def test_numpy_maps_what_is_written(src: Path, tmp_path: Path) -> None:
    """No box is of equal size on all ranks: 47 rows and 33 columns on 6 ranks."""
    out = tmp_path / "npy"
    intarsia.convert(src, out, **OPTIONS)
    said = json.loads((out / "boxes.json").read_text())["tensors"]
    files = {path.name: np.load(path, mmap_mode="r") for path in out.glob("*.npy")}
    assert files.keys() == {f"rank_{rank}.npy" for rank in range(6)}
    assert len({tuple(shape) for _, shape, *_ in said["lm_head.weight"]["boxes"]}) > 1
    for name, tensor in model(CONFIG).items():
        whole = np.zeros(tensor.shape, np.uint16)
        for offsets, shape, file, start, length in said[name]["boxes"]:
            at = tuple(slice(o, o + n) for o, n in zip(offsets, shape, strict=True))
            held = files[file][start - 128 : start - 128 + length]
            whole[at] = np.frombuffer(held.tobytes(), np.uint16).reshape(shape)
        assert np.array_equal(whole, tensor.view(torch.uint16).numpy())


@registered
@pytest.mark.parametrize(
    "to",
    [
        "torch_dist",
        *(pytest.param(to, marks=pytest.mark.slow) for to in ("hf", "dcp", "fsdp_dtensor")),
    ],
)
def test_it_goes_to_every_format_and_back(src: Path, tmp_path: Path, to: str) -> None:
    intarsia.convert(src, tmp_path / "npy", **OPTIONS)
    intarsia.convert(tmp_path / "npy", tmp_path / "there", to=to, mesh="fsdp=2")
    intarsia.convert(tmp_path / "there", tmp_path / "back", to="npy", mesh="fsdp=5")
    for name in ("npy", "there", "back"):
        assert intarsia.verify(src, tmp_path / name).equal
    assert not (tmp_path / "there" / "boxes.json").exists()
    assert (tmp_path / "back" / "tokenizer_config.json").is_file()


@registered
def test_a_run_that_broke_off_is_resumed_to_the_same_bytes(src: Path, tmp_path: Path) -> None:
    intarsia.convert(src, tmp_path / "whole", **OPTIONS)
    assert die_half_way(src, tmp_path / "out", **OPTIONS) > 0
    report = intarsia.convert(src, tmp_path / "out", resume=True, **OPTIONS)
    assert "resumed: " in str(report)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert not leftovers(tmp_path)


@registered
def test_an_old_one_is_replaced_and_another_file_is_not(src: Path, tmp_path: Path) -> None:
    out = tmp_path / "npy"
    intarsia.convert(src, out, **OPTIONS)
    intarsia.convert(src, out, overwrite=True, **OPTIONS)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        intarsia.convert(src, out, overwrite=True, **OPTIONS)


def trained(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01 * (seed + 1))
    net(torch.ones(2, 7)).square().sum().backward()
    optimizer.step()
    return net, optimizer


@registered
def test_a_live_model_goes_on_from_it_with_its_optimizer(tmp_path: Path) -> None:
    net, optimizer = trained(0)
    intarsia.save(tmp_path / "dcp", net, optimizer)
    intarsia.convert(tmp_path / "dcp", tmp_path / "npy", to="npy", mesh="fsdp=3")
    assert intarsia.verify(tmp_path / "dcp", tmp_path / "npy").equal
    other, moved = trained(1)
    intarsia.load(tmp_path / "npy", other, moved)
    assert_same(other.state_dict(), net.state_dict())
    assert moved.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    for state, same in zip(moved.state.values(), optimizer.state.values(), strict=True):
        assert_same(state, same)


@registered
@pytest.mark.slow
def test_megatrons_groups_go_through_it_as_through_any_other(tmp_path: Path) -> None:
    src = hf_with_optimizer(tmp_path / "src", model(CONFIG), CONFIG)
    intarsia.convert(src, tmp_path / "saved", to="torch_dist", mesh="tp=2,fsdp=2")
    for to in ("hf", "npy"):
        intarsia.convert(tmp_path / "saved", tmp_path / f"as-{to}", to=to)
        intarsia.convert(tmp_path / f"as-{to}", tmp_path / f"from-{to}", to="torch_dist")
    assert files_of(tmp_path / "from-npy") == files_of(tmp_path / "from-hf")


@registered
@pytest.mark.parametrize("damage", ["lost", "short", "flipped", "garbled"])
def test_damage_is_named(src: Path, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "npy"
    intarsia.convert(src, out, **OPTIONS)
    file, raw = out / "rank_1.npy", (out / "rank_1.npy").read_bytes()
    if damage == "lost":
        file.unlink()
    elif damage == "short":
        file.write_bytes(raw[:-200])
    elif damage == "flipped":
        file.write_bytes(raw[:130] + bytes([raw[130] ^ 1]) + raw[131:])
    else:
        (out / "boxes.json").write_text('{"tensors": []}')
    found = intarsia.verify(out)
    kinds = {"lost": "file-missing", "short": "file-too-short", "flipped": "digest-differs"}
    assert kinds.get(damage, "malformed") in {fault.kind for fault in found.faults}
    if damage != "flipped":
        with pytest.raises(FormatError):
            intarsia.plan(out, to="hf")


@registered
def test_a_name_is_taken_once() -> None:
    with pytest.raises(UsageError, match="a format named 'npy' exists already"):
        added.register(followed()["Npy"]())


@registered
def test_the_newest_of_a_run_is_taken(src: Path, tmp_path: Path) -> None:
    for step in (9, 10):
        intarsia.convert(src, tmp_path / "run" / f"step-{step}", **OPTIONS)
    assert intarsia.open(tmp_path / "run").manifest.path.endswith("step-10")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's file in a package with the entry point that the page shows."""
    (line,) = blocks(PAGE, "toml")
    points = line.replace('[project.entry-points."intarsia.formats"]', "[intarsia.formats]")
    home = tmp_path / "site"
    (home / "npy_format-1.dist-info").mkdir(parents=True)
    (home / "npy_format.py").write_text(CODE)
    (home / "npy_format-1.dist-info" / "METADATA").write_text("Name: npy-format\nVersion: 1\n")
    (home / "npy_format-1.dist-info" / "entry_points.txt").write_text(points.replace('"', ""))
    monkeypatch.syspath_prepend(home)
    added._installed.cache_clear()
    yield home
    added._installed.cache_clear()
    sys.modules.pop("npy_format", None)


@pytest.mark.usefixtures("installed")
def test_an_installed_format_is_one_of_the_command_line(src: Path, tmp_path: Path) -> None:
    out = tmp_path / "npy"
    assert cli("convert", src, out, "--to", "npy", "--mesh", "fsdp=2").status == 0
    assert cli("verify", src, out).status == 0
    assert "npy" in cli("inspect", out).out
    assert "npy" in cli("plan", src, "--to", "nopy").err


def test_a_package_that_cannot_be_loaded_is_named(installed: Path, src: Path) -> None:
    (installed / "npy_format.py").write_text("import no_such_module")
    with pytest.raises(UsageError, match="'npy' cannot be loaded from npy_format:Npy"):
        intarsia.plan(src, to="npy")
    assert intarsia.plan(src, to="dcp").proven

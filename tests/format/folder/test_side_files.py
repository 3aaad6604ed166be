"""Small files go along where they are the checkpoint's own, in a folder or in the hub's cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

import intarsia
from attacks import sound
from intarsia.errors import FormatError, UnsafeError
from intarsia.planning.inventory import Fate
from tests.checkpoints import llama_config, model, write_dcp, write_hf


def cached(root: Path) -> Path:
    """A model as the hub's cache keeps it: a snapshot of links into `blobs`."""
    src, snapshot, blobs = sound.hf(root / "plain"), root / "snapshots" / "abc", root / "blobs"
    (src / "tokenizer.json").write_text("{}")
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in src.iterdir():
        shutil.copy(path, blobs / f"hash-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/hash-{path.name}")
    return snapshot


def test_a_snapshot_of_links_into_the_blobs_is_a_checkpoint(tmp_path: Path) -> None:
    snapshot, out = cached(tmp_path / "models--a--b"), tmp_path / "out"
    assert sound.NAME in intarsia.open(snapshot)
    intarsia.convert(snapshot, out, to="dcp")
    assert (out / "tokenizer.json").read_text() == "{}"
    assert not any(path.is_symlink() for path in out.rglob("*"))


@pytest.mark.parametrize("how", ["a link to nothing", "a folder", "a pipe"])
@pytest.mark.parametrize("format", ["hf", "dcp", "torch_dist"])
def test_a_configuration_that_cannot_be_read_is_not_taken_for_none(
    tmp_path: Path, format: str, how: str
) -> None:
    """Where a blob of the hub's cache is lost, its link is still there."""
    src, config = tmp_path / "src", tmp_path / "src" / "config.json"
    source = write_hf(tmp_path / "hf", model(llama_config()), llama_config())
    intarsia.convert(source, src, to=format)
    config.rename(tmp_path / "config.json")
    if how == "a link to nothing":
        config.symlink_to("nowhere")
    else:
        config.mkdir() if how == "a folder" else os.mkfifo(config)
    text = (
        r"src/config.json is there and no file that can be read[\s\S]*hint: restore it, or remove"
    )
    with pytest.raises(FormatError, match=text):
        intarsia.convert(src, tmp_path / "out", to="hf")
    assert [fault.kind for fault in intarsia.verify(src).faults] == ["file-missing"]
    config.rmdir() if how == "a folder" else config.unlink()
    assert intarsia.open(src, config=tmp_path / "config.json").family == "llama"


@pytest.mark.parametrize("text", ['{"model_type": "llama", ', "[]"])
def test_a_configuration_that_is_cut_off_is_to_be_restored_or_removed(
    text: str, tmp_path: Path
) -> None:
    src = write_hf(tmp_path / "hf", model(llama_config()), llama_config())
    (src / "config.json").rename(tmp_path / "config.json")
    (src / "config.json").write_text(text)
    with pytest.raises(FormatError, match=r"config\.json is not[\s\S]*hint: restore it, or remove"):
        intarsia.open(src)
    (src / "config.json").unlink()
    assert intarsia.open(src, config=tmp_path / "config.json").family == "llama"


@pytest.mark.parametrize("to", ["/etc/passwd", "../../secret", "../../blobs/../secret", "../other/x.json", "../../blobs/leads-out"])  # fmt: skip
def test_a_link_that_leads_elsewhere_is_refused_and_nothing_is_written(
    tmp_path: Path, to: str
) -> None:
    snapshot = cached(tmp_path / "models--a--b")
    home = snapshot.parent.parent
    (home / "secret").write_text("key")
    (home / "snapshots" / "other").mkdir()
    (home / "snapshots" / "other" / "x.json").write_text("{}")
    (home / "blobs" / "leads-out").symlink_to(home / "secret")
    (snapshot / "extra.json").symlink_to(to)
    with pytest.raises(UnsafeError, match=r"extra\.json is a link to"):
        intarsia.convert(snapshot, tmp_path / "out", to="dcp")
    assert not (tmp_path / "out").exists()


def test_blobs_mean_nothing_beside_a_folder_that_is_no_snapshot(tmp_path: Path) -> None:
    src = sound.hf(tmp_path / "a" / "b" / "model")
    (tmp_path / "a" / "blobs").mkdir()
    (tmp_path / "a" / "blobs" / "x").write_text("key")
    (src / "extra.json").symlink_to("../../blobs/x")
    with pytest.raises(UnsafeError, match="outside of the checkpoint"):
        intarsia.convert(src, tmp_path / "out", to="dcp")


def test_a_link_within_the_folder_is_its_own(tmp_path: Path) -> None:
    src = sound.hf(tmp_path / "model", a__json={})
    (src / "b.json").symlink_to("a.json")
    intarsia.convert(src, tmp_path / "out", to="dcp")
    assert (tmp_path / "out" / "b.json").read_text() == "{}"


def test_a_header_is_read_only_where_what_it_describes_was_read(tmp_path: Path) -> None:
    config = llama_config()
    held = model(config)
    groups = [{"params": [*held], "lr": 0.1}]
    state = {name: {"exp_avg": torch.zeros(x.shape)} for name, x in held.items()}
    write_dcp(tmp_path / "dcp", {"model": held, "optim": {"state": state, "param_groups": groups}})
    src = tmp_path / "src"
    intarsia.convert(tmp_path / "dcp", src, to="hf", config=config)
    home = src / "optimizer"
    (home / "old").mkdir()
    stray = (".metadata", "other.safetensors.index.json", "old/entries.json", "old/.metadata")
    for name in stray:
        (home / name).write_text("{}")

    def fates() -> dict[str, Fate]:
        return {
            x.name: x.fate for x in intarsia.open(src).manifest.inventory if x.kind != "section"
        }

    assert {fates()[f"optimizer/{name}"] for name in stray} == {Fate.LEFT_OUT}
    assert fates()["optimizer/entries.json"] is fates()["optimizer/model.safetensors"] is Fate.READ
    for name in ("model.safetensors", "other.safetensors.index.json"):
        (home / name).unlink()
    assert fates()["optimizer/entries.json"] is Fate.READ
    assert "optimizer" not in fates()

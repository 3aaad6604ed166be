"""Stored digests: of a folder, and of the one file of a folder that is named alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import intarsia
from intarsia.checking.digests.digest import Digests
from intarsia.format.folder.side_files import DIGESTS
from tests.faults.sound import trained, weights, write


def converted(tmp_path: Path) -> Path:
    hub = write(trained(weights(7)), tmp_path / "hub")
    intarsia.convert(hub, tmp_path / "out", to="hf", workers=1)
    return tmp_path / "out"


def change(file: Path) -> str:
    held = load_file(file)
    name = "model.layers.1.mlp.gate.weight"
    held[name] = held[name] * 2
    save_file(held, file, {"format": "pt"})
    return name


def test_a_file_named_alone_is_held_against_its_folder_s_digests(tmp_path: Path) -> None:
    file = converted(tmp_path) / "model.safetensors"
    assert intarsia.verify(file).sound, intarsia.verify(file)
    name = change(file)
    (fault,) = intarsia.verify(file).faults
    assert (fault.kind, fault.tensors, fault.where) == ("digest-differs", (name,), file.name)


def test_a_file_beside_others_is_not_taken_for_what_the_digests_mean(tmp_path: Path) -> None:
    folder = converted(tmp_path)
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    change(folder / "other.safetensors")
    assert intarsia.verify(folder / "other.safetensors").sound


def test_a_tensor_that_the_digests_do_not_know_is_told(tmp_path: Path) -> None:
    folder = converted(tmp_path)
    held = load_file(folder / "model.safetensors") | {"extra.weight": torch.ones(3)}
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    (fault,) = intarsia.verify(folder).faults
    assert (fault.kind, fault.tensors) == ("digest-differs", ("extra.weight",))
    assert "nothing was stored of extra.weight" in fault.text


def test_digests_that_contradict_themselves_are_one_fault(tmp_path: Path) -> None:
    folder = converted(tmp_path)
    where = folder / "intarsia-digests.json"
    where.write_text(where.read_text().replace("pages:", "pages:0", 3))
    (fault,) = intarsia.verify(folder).faults
    assert (fault.kind, fault.where) == ("malformed", "intarsia-digests.json")


def test_a_file_of_no_digests_is_no_file_of_digests(tmp_path: Path) -> None:
    out = converted(tmp_path)
    empty = Digests("pages", {})
    text = {"root": empty.root, "from": None, "kind": "pages", "tensors": {}}
    (out / DIGESTS).write_text(json.dumps(text))
    assert [f.kind for f in intarsia.verify(out).faults] == ["malformed"]

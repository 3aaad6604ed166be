"""One fault does not hide another: what can be read is judged, what cannot is said."""

from __future__ import annotations

import io
import json
import os
import struct
from collections import Counter
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from safetensors.torch import load_file, save_file

import intarsia
from intarsia.checking.alone.soundness import Soundness
from intarsia.store.reading.folder import Folder
from tests.checkpoints import intarsia as command
from tests.checkpoints import llama_config, model, write_hf
from tests.faults import damage
from tests.faults.sound import CONFIG as MOE
from tests.faults.sound import convert, trained, weights, write

CONFIG = llama_config()
NAN = "model.layers.1.self_attn.q_proj.weight"


def small() -> dict[str, torch.Tensor]:
    return {name: x * 0.05 for name, x in model(CONFIG).items()}


def kinds(report: Soundness) -> list[str]:
    return sorted(fault.kind for fault in report.faults)


def fault_of(report: Soundness, kind: str) -> tuple[str, ...]:
    (found,) = [fault for fault in report.faults if fault.kind == kind]
    return found.tensors


def test_an_absent_a_short_and_a_garbled_file_are_all_named_with_what_they_held(
    tmp_path: Path,
) -> None:
    tensors = small()
    tensors[NAN][0, 0] = float("nan")
    names = list(tensors)
    src = write_hf(tmp_path, tensors, CONFIG, files=6)
    at = names.index(NAN) % 6
    absent, short, garbled = [k for k in range(6) if k != at][:3]
    files = sorted(src.glob("*.safetensors"))
    files[absent].unlink()
    os.truncate(files[short], files[short].stat().st_size - 8)
    files[garbled].write_bytes(b"\xff" * 4000)
    report = intarsia.verify(src)
    assert kinds(report) == ["file-missing", "file-too-short", "file-too-short", "not-finite"]
    by_file = {fault.where: fault for fault in report.faults}
    assert set(by_file[files[absent].name].tensors) == set(names[absent::6])
    assert len(by_file[files[short].name].tensors) == 1, "the others lie before the end"
    assert set(by_file[files[garbled].name].tensors) == set(names[garbled::6])
    assert fault_of(report, "not-finite") == (NAN,)
    lost = len(names[absent::6]) + 1 + len(names[garbled::6])
    assert any(
        f"{lost} tensors are in files that are absent or damaged" in note for note in report.notes
    ), report.notes
    assert report.compared == len(names) - lost


def test_what_an_unreadable_file_held_is_not_called_missing_twice(tmp_path: Path) -> None:
    src = write_hf(tmp_path, small(), CONFIG)
    os.truncate(src / "model.safetensors", 200)
    report = intarsia.verify(src)
    assert kinds(report) == ["file-too-short"]
    assert any(
        "30 tensors are in files that are absent or damaged" in note for note in report.notes
    )


def test_files_without_an_index_are_read_all_the_same(tmp_path: Path) -> None:
    tensors = small()
    tensors[NAN][:12] = 0
    src = write_hf(tmp_path, tensors, CONFIG, files=3)
    (src / "model.safetensors.index.json").write_text("{")
    assert kinds(intarsia.verify(src)) == ["malformed", "zero-block"]
    (src / "model.safetensors.index.json").unlink()
    (src / "model-00002-of-00003.safetensors").unlink()
    assert kinds(intarsia.verify(src)) in (["file-missing"], ["file-missing", "zero-block"])


def test_a_stale_file_and_a_wrong_index_do_not_hide_the_rest(tmp_path: Path) -> None:
    tensors = small()
    tensors[NAN][3] = float("inf")
    src = write_hf(tmp_path, tensors, CONFIG, files=3)
    save_file({"x": torch.ones(3)}, src / "model.safetensors")
    index = json.loads((src / "model.safetensors.index.json").read_text())
    first, *_, last = index["weight_map"]
    held = index["weight_map"]
    held[first], held[last] = held[last], held[first]
    (src / "model.safetensors.index.json").write_text(json.dumps(index))
    found = kinds(intarsia.verify(src))
    assert found.count("index-wrong") >= 2
    assert "not-finite" in found
    assert "tensor-missing" not in found


def test_several_wrong_shapes_are_told_beside_what_is_missing(tmp_path: Path) -> None:
    tensors = small()
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.randn(7, 7).bfloat16()
    tensors["model.layers.1.mlp.gate_proj.weight"] = torch.randn(33, 7).bfloat16()
    wide = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = torch.cat([wide, wide[:5] * 3])
    report = intarsia.verify(write_hf(tmp_path, tensors, CONFIG))
    assert kinds(report) == ["shape-wrong", "shape-wrong", "tensor-missing", "vocabulary-padded"]
    assert report.family == "llama"
    assert fault_of(report, "tensor-missing") == ("model.norm.weight",)
    assert fault_of(report, "vocabulary-padded") == ("lm_head.weight",)


@pytest.mark.parametrize("format", ["dcp", "torch_dist", "fsdp_dtensor"])
@pytest.mark.one_in(3)
def test_ranks_files_are_judged_each_for_itself(format: str, tmp_path: Path) -> None:
    tensors = trained(weights(3))
    tensors["optimizer.exp_avg_sq.model.layers.2.mlp.gate.weight"][0, 0] = -1.0
    hub = write(tensors, tmp_path / "hub")
    folder = convert(
        hub, format, tmp_path / "out", mesh="tp=2" if format != "fsdp_dtensor" else "fsdp=4"
    )
    (folder / "intarsia-digests.json").unlink(missing_ok=True)
    files = [p for p in damage.data_files(folder) if p.name != "__0_0.distcp"]
    gone, cut = files[-1], damage.data_files(folder)[0]
    gone.unlink()
    os.truncate(cut, cut.stat().st_size - 1)
    report = intarsia.verify(folder)
    found = {fault.kind: fault for fault in report.faults}
    assert {"file-missing", "file-too-short"} <= found.keys(), report
    assert found["file-missing"].where == gone.name
    assert found["file-missing"].tensors
    assert gone.name in found["file-missing"].text
    assert found["file-too-short"].where == cut.name
    assert len(report.faults) < 8, "a lost file is one fault, not one for each of its tensors"
    assert any("absent or damaged" in note for note in report.notes)
    assert command("verify", folder, "--json").status == 1


def test_a_page_can_be_made_of_a_checkpoint_that_lacks_files(tmp_path: Path) -> None:
    hub = write(weights(4), tmp_path / "hub")
    folder = convert(hub, "dcp", tmp_path / "out")
    damage.data_files(folder)[-1].unlink()
    page = tmp_path / "page.html"
    assert command("verify", folder, "--html", page).status == 1
    assert "file-missing" in page.read_text()


def test_a_config_that_is_no_json_is_one_fault_among_others(tmp_path: Path) -> None:
    tensors = small()
    tensors[NAN][0, 0] = float("nan")
    src = write_hf(tmp_path, tensors, CONFIG)
    (src / "config.json").write_text("not json")
    assert kinds(intarsia.verify(src)) == ["malformed", "not-finite"]


def test_the_digests_of_what_can_be_read_are_still_checked(tmp_path: Path) -> None:
    hub = write(weights(5), tmp_path / "hub", MOE)
    folder = convert(hub, "hf", tmp_path / "out")
    files = damage.data_files(folder)
    files[0].unlink()
    held = load_file(files[-1])
    name = next(n for n, x in held.items() if x.ndim == 2)
    held[name][0, 0] += 1
    files[-1].unlink()
    save_file(held, files[-1], {"format": "pt"})
    report = intarsia.verify(folder)
    assert kinds(report) == ["digest-differs", "file-missing"]
    assert fault_of(report, "digest-differs") == (name,)
    (fault,) = [f for f in report.faults if f.kind == "digest-differs"]
    assert fault.where == files[-1].name


@pytest.mark.parametrize("format", ["hf", "dcp", "torch_dist", "fsdp_dtensor"])
@pytest.mark.one_in(2)
def test_bytes_are_read_once_though_digests_are_stored(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = write(trained(weights(6)), tmp_path / "hub")
    folder = convert(hub, format, tmp_path / "out", mesh="")
    assert intarsia.verify(folder).sound
    counts: Counter[tuple[str, int, int]] = Counter()
    into = Folder.read_into

    def count(self: Folder, file: str, start_bytes: int, buffer: Any) -> None:
        counts[file, start_bytes, memoryview(buffer).nbytes] += 1
        into(self, file, start_bytes, buffer)

    def view(self: Folder, *where: Any) -> None:
        raise AssertionError(f"{where} is read aside from the survey")

    monkeypatch.setattr(Folder, "read_into", count)
    monkeypatch.setattr(Folder, "view", view)
    assert intarsia.verify(folder).sound
    rows = 64 * 24  # the vocabularies' elements, of which every archive's head is shorter
    assert {n for (_, _, size), n in counts.items() if size in (2 * rows, 4 * rows)} == {1}


@pytest.mark.parametrize("at", [-22, "version"])
def test_an_archive_whose_directory_is_damaged_is_a_fault(at: int | str, tmp_path: Path) -> None:
    """Torch finds a tensor by the directory at its archive's end, which elements do not need."""
    folder = convert(write(weights(4), tmp_path / "hub"), "dcp", tmp_path / "out", mesh="")
    path, start, end = damage.payload(folder, "embed_tokens")
    data = bytearray(path.read_bytes())
    where = end + at if isinstance(at, int) else start + _content_of(data[start:end], at)
    data[where] ^= 0x55
    damage.replace(path, bytes(data))
    (fault,) = intarsia.verify(folder).faults
    assert fault.kind == "malformed"
    assert fault.tensors == ("model.embed_tokens.weight",)
    assert path.name in fault.where


def test_a_tracker_that_is_no_number_is_a_fault(tmp_path: Path) -> None:
    folder = convert(write(weights(4), tmp_path / "hub"), "torch_dist", tmp_path / "out", mesh="")
    (folder / "latest_checkpointed_iteration.txt").write_text("1x")
    (fault,) = intarsia.verify(folder).faults
    assert (fault.kind, fault.where) == ("malformed", "latest_checkpointed_iteration.txt")


def _content_of(archive: bytearray, name: str) -> int:
    with ZipFile(io.BytesIO(archive)) as held:
        (info,) = (i for i in held.infolist() if i.filename.endswith(f"/{name}"))
    lengths = struct.unpack_from("<HH", archive, info.header_offset + 26)
    return info.header_offset + 30 + sum(lengths)

"""What befell one file is told once, however many tensors lay in it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

import intarsia
from intarsia.checking.alone.soundness import Soundness
from intarsia.format.dcp import data_files
from tests.checkpoints import intarsia as command
from tests.checkpoints import llama_config, model, write_dcp, write_hf
from tests.faults.sound import convert, trained, weights, write

CONFIG = llama_config()
MESHES = [("dcp", "fsdp=8"), ("torch_dist", "tp=2,pp=2"), ("fsdp_dtensor", "tp=2,fsdp=4")]


def kinds(report: Soundness) -> list[str]:
    return [fault.kind for fault in report.faults]


def converted(tmp_path: Path, to: str, mesh: str | None = None) -> Path:
    return convert(write(trained(weights(1)), tmp_path / "hub"), to, tmp_path / "out", mesh)


@pytest.mark.parametrize(("to", "mesh"), MESHES)
@pytest.mark.parametrize("cut", ["absent", "empty"])
@pytest.mark.one_in(3)
def test_where_most_files_are_gone_that_alone_is_said(
    to: str, mesh: str, cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src = converted(tmp_path, to, mesh)
    monkeypatch.setattr(data_files, "HOLLOW_BYTES", -(1 << 30))  # as for many gigabytes
    files = sorted(src.rglob("*.distcp"))
    for file in files[:-1]:
        file.unlink() if cut == "absent" else os.truncate(file, 0)
    report = intarsia.verify(src)
    kind = "file-missing" if cut == "absent" else "file-too-short"
    assert kinds(report) == [kind] * (1 if cut == "absent" else len(files) - 1), str(report)
    if cut == "absent":
        assert f"lacks {len(files) - 1} of {len(files)} data files" in report.faults[0].text
        assert report.faults[0].where.startswith("__0_0.distcp, ")
    assert report.notes == ("too little can be read: no tensor's content was checked",)
    assert command("verify", src).status == 1


@pytest.mark.parametrize(("to", "mesh"), MESHES)
@pytest.mark.one_in(2)
def test_objects_in_a_lost_file_are_not_missed_again(to: str, mesh: str, tmp_path: Path) -> None:
    src = converted(tmp_path, to, mesh)
    next(src.rglob("__0_0.distcp")).unlink()
    assert kinds(intarsia.verify(src)) == ["file-missing"]


def test_a_file_that_lost_the_lists_of_groups_hides_nothing_of_the_others(tmp_path: Path) -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
    net = torch.nn.ModuleDict({"layers": layers})
    optimizer = torch.optim.AdamW(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    with torch.no_grad():
        net.get_parameter("layers.0.weight")[0, 0] = float("nan")
    weights, state = get_state_dict(net, optimizer)
    dcp.save({"model": weights, "optim": state}, checkpoint_id=tmp_path / "src")
    intarsia.convert(tmp_path / "src", tmp_path / "out", to="dcp", mesh={"tp": 2}, digests=False)
    file = tmp_path / "out" / "__0_0.distcp"
    os.truncate(file, file.stat().st_size - 2000)
    short, nan = intarsia.verify(tmp_path / "out").faults
    assert (short.kind, short.where) == ("file-too-short", file.name)
    assert "or another has its name" in short.next
    assert (nan.kind, nan.tensors) == ("not-finite", ("layers.0.weight",))


@pytest.mark.parametrize(("to", "mesh"), MESHES)
@pytest.mark.one_in(3)
def test_a_file_of_zeros_is_one_fault_with_all_that_it_held(
    to: str, mesh: str, tmp_path: Path
) -> None:
    src = converted(tmp_path, to, mesh)
    file = next(src.rglob("__1_0.distcp"))
    file.write_bytes(bytes(file.stat().st_size))
    report = intarsia.verify(src)
    (fault,) = [fault for fault in report.faults if fault.kind == "malformed"]
    assert len(report.faults) <= 2
    assert fault.where == file.name
    assert len(fault.tensors) > 3
    assert re.search(r"and [\d,]+ more like it in __1_0.distcp", fault.text)


def test_a_few_wrong_chunks_keep_their_places(tmp_path: Path) -> None:
    tensors = {name: x * 0.05 for name, x in model(CONFIG).items()}
    src = write_dcp(tmp_path / "src", tensors)
    data = bytearray((src / "__0_0.distcp").read_bytes())
    for name in ("model.norm.weight", "lm_head.weight"):
        at = data.find(tensors[name].view(torch.uint8).numpy().tobytes())
        data[at] ^= 1
    (src / "__0_0.distcp").write_bytes(data)
    report = intarsia.verify(src)
    assert kinds(report) == ["checksum-wrong"] * 2
    assert all(" bytes [" in fault.where for fault in report.faults)


def test_a_weight_that_is_no_number_is_not_called_stale_too(tmp_path: Path) -> None:
    tensors = trained(weights(1))
    name = next(n for n in tensors if n.endswith("q_proj.weight") and n.startswith("model."))
    tensors[name][0, 0] = float("nan")
    assert kinds(intarsia.verify(write(tensors, tmp_path / "src"))) == ["not-finite"]


def test_many_stale_weights_are_one_fault(tmp_path: Path) -> None:
    tensors = trained(weights(1))
    stale = [n for n in tensors if n.endswith("_proj.weight") and n.startswith("model.")]
    for name in stale:
        tensors[name] = tensors[name] * 2
    (fault,) = intarsia.verify(write(tensors, tmp_path / "src")).faults
    assert fault.kind == "master-differs"
    assert set(stale) < set(fault.tensors)
    assert f"and {len(stale) - 1} more like it" in fault.text


@pytest.mark.parametrize(
    ("kind", "types"),
    [("dtype-implausible", (torch.bfloat16, torch.float16)), ("value-implausible", (torch.uint8, torch.float32))],
)  # fmt: skip
def test_a_model_whose_bits_are_called_another_type_is_one_fault(
    kind: str, types: tuple[torch.dtype, torch.dtype], tmp_path: Path
) -> None:
    tensors = {n: x.float() * 0.05 for n, x in model(CONFIG).items()}
    if types[0] == torch.uint8:  # every number 2 to the power of 64 times as large
        bits = {n: x.view(torch.int32) + (64 << 23) for n, x in tensors.items()}
    else:
        bits = {n: x.to(types[0]) for n, x in tensors.items()}
    held = {n: x.view(types[1]) for n, x in bits.items()}
    src = write_hf(tmp_path / "src", held, CONFIG, files=2)
    (fault,) = intarsia.verify(src).faults
    assert (fault.kind, len(fault.tensors) > 10) == (kind, True)
    assert fault.files == tuple(sorted(file.name for file in src.glob("*.safetensors")))
    assert all(file in fault.where for file in fault.files)
    assert " more like it" in fault.text


def test_a_tensor_in_two_files_is_told_by_the_files(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "src", model(CONFIG), CONFIG, files=3)
    first, second, _ = sorted(src.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    told = [f for f in intarsia.verify(src).faults if f.where == second.name]
    assert len(told) == 1, told


@pytest.mark.parametrize("damage", ["head", "zeros"])
def test_an_object_that_no_longer_begins_as_an_archive_is_damaged(
    damage: str, tmp_path: Path
) -> None:
    src = write_dcp(tmp_path / "src", {"a.weight": torch.randn(8, 8), "rng": {"seed": [1, 2, 3]}})
    manifest = intarsia.open(src).manifest
    entry = next(e for e in manifest.entries.values() if e.name.startswith("rng"))
    with (src / entry.file).open("r+b") as file:
        file.seek(entry.start_bytes)
        file.write(bytes(40 if damage == "head" else entry.length_bytes))
    (fault,) = intarsia.verify(src).faults
    assert (fault.kind, fault.tensors) == ("entry-damaged", (entry.name,))


def test_a_sum_in_the_archive_s_directory_that_is_another_is_a_fault(tmp_path: Path) -> None:
    src = write_dcp(tmp_path / "src", {"a.weight": torch.randn(8, 8)})
    data = bytearray((src / "__0_0.distcp").read_bytes())
    at = data.find(b"PK\x01\x02")
    while b"data/0" not in data[at + 46 : at + 46 + 30]:
        at = data.find(b"PK\x01\x02", at + 1)
    data[at + 16] ^= 0xFF
    (src / "__0_0.distcp").write_bytes(data)
    (fault,) = intarsia.verify(src).faults
    assert (fault.kind, fault.tensors) == ("malformed", ("a.weight",))
    assert "CRC-32" in fault.text


def test_metadata_without_a_byte_is_a_fault_of_the_iteration_that_is_tracked(
    tmp_path: Path,
) -> None:
    src = converted(tmp_path, "fsdp_dtensor", "tp=2,fsdp=2")
    metadata = next(src.rglob(".metadata"))
    metadata.write_bytes(b"")
    (fault,) = intarsia.verify(src).faults
    assert fault.kind == "metadata-missing"
    assert "is empty" in fault.text


@pytest.mark.parametrize("kind", ["not-finite", "negative-variance"])
@pytest.mark.one_in(2)
def test_what_went_wrong_everywhere_is_one_fault(kind: str, tmp_path: Path) -> None:
    held = trained(weights(1))
    wrong = [
        n
        for n in held
        if n.startswith("optimizer.exp_avg_sq." if kind != "not-finite" else "model.layers.")
    ]
    for name in wrong:
        held[name].view(-1)[0] = -1.0 if kind != "not-finite" else float("nan")
    report = intarsia.verify(write(held, tmp_path / "hub"))
    (fault,) = [f for f in report.faults if f.kind == kind]
    assert {*fault.tensors} == {*wrong}
    assert fault.elements == len(wrong)
    assert f"and {len(wrong) - 1} more like it" in fault.text
    for name in wrong[3:]:
        held[name].view(-1)[0] = 0.5
    few = intarsia.verify(write(held, tmp_path / "few"))
    assert kinds(few).count(kind) == 3, "each is told, with its place"

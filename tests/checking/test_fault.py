"""A fault names every tensor and the next step; a terminal shows the first and counts the rest."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

import intarsia
from intarsia.checking.fault import Fault, gathered
from intarsia.checking.kinds import KINDS
from tests.checkpoints import intarsia as command
from tests.checkpoints import normal_tensor


def test_a_fault_names_all_of_its_tensors(tmp_path: Path) -> None:
    tensors = {f"layers.{k}.w": normal_tensor((8, 8), torch.float32, k) for k in range(10, 40)}
    zero = [f"layers.{k}.w" for k in range(10, 30)]
    for name in zero:
        tensors[name].zero_()
    save_file(tensors, tmp_path / "model.safetensors")
    (fault,) = intarsia.verify(tmp_path).faults
    assert (fault.kind, list(fault.tensors)) == ("zero-tensor", zero)
    assert command("verify", tmp_path, "--json").json["faults"][0]["tensors"] == zero
    answer = command("verify", tmp_path)
    assert "layers.10.w, layers.11.w, layers.12.w and 17 more" in " ".join(answer.out.split())
    assert "--json names all 20 tensors" in answer.out


def test_a_fault_says_what_to_do_next(tmp_path: Path) -> None:
    save_file({"a.w": torch.full((4, 4), float("nan"))}, tmp_path / "model.safetensors")
    (fault,) = intarsia.verify(tmp_path).faults
    assert fault.next == KINDS["not-finite"].next
    assert command("verify", tmp_path, "--json").json["faults"][0]["next"] == fault.next
    assert f"next: {fault.next}" in command("verify", tmp_path).out


def test_a_damaged_file_hands_on_what_its_error_advises(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"short")
    (fault,) = intarsia.verify(tmp_path).faults
    assert fault.kind == "file-too-short"
    assert fault.next == "the file is damaged or truncated: copy it again from its source"


def test_a_file_that_cannot_be_read_is_one_fault_of_all_that_it_holds() -> None:
    def unread(file: str, k: int) -> Fault:
        text = f"run/{file}: Permission denied"
        return Fault("unreadable", (f"{file}.{k}",), f"{file} byte {k}", text, 8, files=(file,))

    many = [unread("__0_0.distcp", k) for k in range(9)]
    few = [unread("__1_0.distcp", k) for k in range(2)]
    whole, *rest = gathered([*many, *few])
    assert rest == few
    assert whole.tensors == tuple(f"__0_0.distcp.{k}" for k in range(9))
    assert (whole.where, whole.elements) == ("__0_0.distcp", 72)
    assert whole.text == ("run/__0_0.distcp: Permission denied; and 8 more like it in __0_0.distcp")

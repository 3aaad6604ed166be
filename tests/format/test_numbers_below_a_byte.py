"""Numbers of four bits, two in a byte: safetensors counts numbers, torch counts bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import intarsia
from intarsia.errors import FormatError
from tests.checkpoints import assert_same, read_dcp, read_hf, write_hf
from tests.checkpoints import intarsia as command_line
from tests.quantised.schemes import integers

PAIRS = torch.float4_e2m1fn_x2


def test_four_bits_move_through_dcp_and_back(tmp_path: Path) -> None:
    tensors = {
        "a.weight": integers((6, 8), torch.uint8, 1).view(PAIRS),
        "a.weight_scale": integers((6, 1), torch.uint8, 2).view(torch.float8_e8m0fnu),
    }
    src = write_hf(tmp_path / "hf", tensors)
    with safe_open(src / "model.safetensors", "pt") as file:
        assert file.get_slice("a.weight").get_dtype() == "F4"
        assert file.get_slice("a.weight").get_shape() == [6, 16]
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="tp=2,fsdp=3")
    assert_same(read_dcp(tmp_path / "dcp"), tensors)
    intarsia.convert(tmp_path / "dcp", tmp_path / "back", to="hf")
    assert_same(read_hf(tmp_path / "back"), tensors)
    assert intarsia.verify(tmp_path / "back", src)
    into = {n: torch.zeros(t.shape, dtype=torch.uint8).view(t.dtype) for n, t in tensors.items()}
    intarsia.load(tmp_path / "dcp", into=into)
    assert_same(into, tensors)


@pytest.mark.parametrize(("dtype", "shape"), [("F4", [2, 3]), ("F4", []), ("F6_E2M3", [4])])
def test_what_does_not_fill_bytes_is_refused_by_name(
    tmp_path: Path, dtype: str, shape: list[int]
) -> None:
    header = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, 3]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    with pytest.raises(FormatError, match=dtype):
        intarsia.open(path)


def test_bits_that_differ_are_counted(tmp_path: Path) -> None:
    a = {"a.weight": integers((6, 8), torch.uint8, 1)}
    b = {"a.weight": a["a.weight"].clone()}
    b["a.weight"][2, 3] ^= 1
    paths = []
    for name, tensors in (("a", a), ("b", b)):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name)
        save_file({n: t.view(PAIRS) for n, t in tensors.items()}, paths[-1] / "model.safetensors")
    (found,) = intarsia.verify(*paths).different
    assert (found.elements, found.first) == (1, (2, 3))
    bits = [int(x["a.weight"][2, 3]) & 15 for x in (a, b)]
    codes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    numbers = [codes[n & 7] * (-1 if n & 8 else 1) for n in bits]
    assert found.max_abs == abs(numbers[0] - numbers[1])


@pytest.mark.parametrize("command", ["inspect", "verify", "digest", "convert", "plan"])
def test_a_sound_file_of_a_type_that_torch_has_not_is_refused_and_not_called_damaged(
    tmp_path: Path, command: str
) -> None:
    header = {"x": {"dtype": "F6_E3M2", "shape": [2, 4], "data_offsets": [0, 6]}}
    text = json.dumps(header).encode()
    (tmp_path / "hf").mkdir()
    path = tmp_path / "hf" / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(6))
    words = {"convert": [tmp_path / "out", "--to", "dcp"], "plan": ["--to", "dcp"]}
    done = command_line(command, path.parent, *words.get(command, []))
    assert done.status == 2
    assert "element type 'F6_E3M2' is not supported" in done.err
    assert not done.out

"""The header of a safetensors file: written as safetensors reads it, refused where it lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, load_file, save_file

import intarsia
from intarsia.dtypes import BY_NAME, BY_TORCH
from intarsia.errors import FormatError, IntarsiaError, UsageError
from intarsia.format.hf.safetensors_header import make_header, read_header
from intarsia.store.reading.folder import Folder
from tests.checkpoints import DTYPES, assert_same, bits, random_tensor, read_dcp, write_dcp

SHAPES = [(), (0,), (3,), (2, 0, 4), (2, 3, 4)]


def rows_of(path: Path):
    with Folder(path.parent) as folder:
        return read_header(folder, path.name)


def everything() -> dict[str, torch.Tensor]:
    return {
        f"{dtype}-{shape}": random_tensor(shape, dtype, k)
        for k, dtype in enumerate(DTYPES)
        for shape in SHAPES
    }


def test_a_file_of_every_element_type_and_shape_is_read(tmp_path: Path) -> None:
    tensors = everything()
    save_file(tensors, tmp_path / "file", {"format": "pt"})
    rows, metadata = rows_of(tmp_path / "file")
    data = (tmp_path / "file").read_bytes()
    assert metadata == {"format": "pt"}
    assert {row.name for row in rows} == set(tensors)
    for row in rows:
        tensor = tensors[row.name]
        assert row.dtype == BY_TORCH[str(tensor.dtype).removeprefix("torch.")]
        assert row.shape == tuple(tensor.shape)
        assert data[row.start_bytes : row.start_bytes + row.length_bytes] == bits(tensor)


def test_a_header_that_we_write_is_read_by_safetensors(tmp_path: Path) -> None:
    tensors = everything()
    rows = [
        (name, BY_TORCH[str(t.dtype).removeprefix("torch.")], tuple(t.shape))
        for name, t in tensors.items()
    ]
    header = make_header(rows, {"format": "pt"})
    assert len(header) % 8 == 0
    data = header + b"".join(bits(t) for t in tensors.values())
    (tmp_path / "file").write_bytes(data)
    assert_same(load_file(tmp_path / "file"), tensors)
    with safe_open(tmp_path / "file", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_names_may_be_any_text(tmp_path: Path) -> None:
    names = ["ünï·cødé", 'quo"te\\', "new\nline", "日本", " ", "model.layers.0.weight"]
    header = make_header([(name, BY_NAME["U8"], (1,)) for name in names], {})
    assert set(load(header + bytes(range(6)))) == set(names)
    (tmp_path / "file").write_bytes(header + bytes(6))
    assert [row.name for row in rows_of(tmp_path / "file")[0]] == names


def test_a_file_without_tensors_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(make_header([], {}))
    assert rows_of(tmp_path / "file") == ([], {})


def file_with(path: Path, header: Any, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(shape: list[int], begin: int, end: int, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD = {"a": entry([4], 0, 4), "b": entry([2, 2], 4, 8)}
LYING: dict[str, tuple[Any, bytes, str]] = {
    "a hole": ({"a": entry([4], 0, 4), "b": entry([2], 6, 8)}, bytes(8), "leaves a hole"),
    "a hole before the first": ({"a": entry([4], 4, 8)}, bytes(8), "leaves a hole"),
    "an overlap": ({"a": entry([4], 0, 4), "b": entry([6], 2, 8)}, bytes(8), "overlaps"),
    "the same bytes twice": ({"a": entry([4], 0, 4), "b": entry([4], 0, 4)}, bytes(4), "overlaps"),
    "bytes at the end": (GOOD, bytes(9), "the file at"),
    "bytes missing at the end": (GOOD, bytes(7), "the file at"),
    "a shape that needs other bytes": ({"a": entry([5], 0, 4)}, bytes(4), "needs 5 bytes"),
    "offsets the wrong way": ({"a": entry([4], 4, 0)}, bytes(4), "needs 4 bytes"),
    "a negative offset": ({"a": entry([4], -4, 0)}, bytes(4), "data_offsets"),
    "a negative size": ({"a": entry([-1, -4], 0, 4)}, bytes(4), "shape"),
    "a size that is no number": ({"a": entry(["4"], 0, 4)}, bytes(4), "shape"),
    "a size that is a bool": ({"a": entry([True], 0, 1)}, bytes(1), "shape"),
    "a size that is a fraction": ({"a": entry([4.0], 0, 4)}, bytes(4), "shape"),
    "sizes that overflow": ({"a": entry([1 << 62, 4], 0, 0)}, b"", "needs"),
    "three offsets": ({"a": GOOD["a"] | {"data_offsets": [0, 2, 4]}}, bytes(4), "data_offsets"),
    "no offsets": ({"a": {"dtype": "U8", "shape": [4]}}, bytes(4), "has no dtype, shape"),
    "a tensor that is a list": ({"a": [1, 2]}, bytes(4), "has no dtype, shape"),
    "an unknown element type": ({"a": entry([4], 0, 4, "Q7")}, bytes(4), "'Q7' is not supported"),
    "sub-byte elements": ({"a": entry([4], 0, 3, "F6_E3M2")}, bytes(3), "'F6_E3M2' is not supported"),
    "metadata that is a list": ({"__metadata__": [], "a": entry([4], 0, 4)}, bytes(4), "not an object"),
    "a list": ([], b"", "not a JSON object"),
    "a text": ("text", b"", "not a JSON object"),
    "no JSON": (b"{'a': 1}", b"", "not JSON"),
    "no UTF-8": (b'{"\xff": 1}', b"", "not JSON"),
    "leading space": (b"  {}", b"", "not a JSON object"),
    "deep nesting": (b'{"a":' * 100_000, b"", "not JSON"),
    "a name twice": (
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
        b'"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
        bytes(4),
        "names 'a' twice",
    ),
    "a field twice": (
        b'{"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}',
        bytes(4),
        "names 'dtype' twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LYING)
def test_a_header_that_lies_is_refused(tmp_path: Path, case: str) -> None:
    header, data, told = LYING[case]
    with pytest.raises(FormatError, match=told):
        rows_of(file_with(tmp_path / "file", header, data))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "has 0 bytes, a header needs at least 8"),
        (b"1234567", "has 7 bytes"),
        ((100).to_bytes(8, "little") + b"{}", "claims 100 bytes, the file has 2"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "claims 9,223,372,036,854,775,808 bytes"),
        ((200_000_000).to_bytes(8, "little") + b"{}", "claims 200,000,000 bytes"),
    ],
)
def test_a_length_that_lies_is_refused(tmp_path: Path, data: bytes, told: str) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(FormatError, match=told):
        rows_of(tmp_path / "file")


def test_a_header_that_no_reader_takes_is_not_called_too_short(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes((200_000_000).to_bytes(8, "little") + b"{}")
    file.open("r+b").truncate(300_000_000)
    (fault,) = intarsia.verify(file).faults
    assert fault.kind == "malformed"
    told = "the header claims 200,000,000 bytes, and safetensors reads no more than 100,000,000"
    assert told in fault.text


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.arange(6), "b": torch.zeros(3, 3)}, tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    for cut in range(len(data)):
        (tmp_path / "file").write_bytes(data[:cut])
        with pytest.raises(FormatError):
            rows_of(tmp_path / "file")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_header_gives_rows_or_one_clear_error(tmp_path_factory, data) -> None:
    path = tmp_path_factory.mktemp("damaged") / "file"
    save_file({"a": torch.arange(6), "b": torch.zeros(3, 3)}, path, {"format": "pt"})
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, 150))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw))
    try:
        rows, _ = rows_of(path)
    except IntarsiaError:
        return
    assert sum(row.length_bytes for row in rows) + min(r.start_bytes for r in rows) == len(raw)


def test_rows_are_in_the_order_of_their_bytes_whatever_the_order_of_the_header(
    tmp_path: Path,
) -> None:
    raw = {
        name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for name, begin, end in (("c", 3, 5), ("a", 0, 3), ("none", 3, 3))
    }
    text = json.dumps(raw).encode()
    (tmp_path / "f").write_bytes(len(text).to_bytes(8, "little") + text + bytes(5))
    rows, _ = rows_of(tmp_path / "f")
    assert [row.name for row in rows] == ["a", "none", "c"]


def test_metadata_that_are_null_are_none_as_to_safetensors(tmp_path: Path) -> None:
    text = json.dumps({"__metadata__": None, **GOOD}).encode()
    (tmp_path / "f").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    assert load_file(tmp_path / "f").keys() == GOOD.keys()
    rows, metadata = rows_of(tmp_path / "f")
    assert ([row.name for row in rows], metadata) == (["a", "b"], {})


def test_a_tensor_with_the_name_that_safetensors_keeps_is_refused_by_what_is_wrong(
    tmp_path: Path,
) -> None:
    held = {"__metadata__": torch.ones(3), "a": torch.ones(2)}
    src = write_dcp(tmp_path / "dcp", held)
    with pytest.raises(UsageError, match="called __metadata__, a name that safetensors keeps"):
        intarsia.convert(src, tmp_path / "hf", to="hf")
    assert [path.name for path in tmp_path.iterdir()] == ["dcp"]
    intarsia.convert(src, tmp_path / "again", to="dcp")
    assert_same(read_dcp(tmp_path / "again"), held)

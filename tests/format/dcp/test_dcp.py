"""DCP folders: what torch saves is read, what we write torch loads, and bad ones are refused."""

from __future__ import annotations

import enum
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import SerializationFormat

import intarsia
from attacks import sound
from intarsia.errors import FormatError, IntarsiaError, UnsafeError, UnsupportedError
from intarsia.format.dcp.metadata import TensorRecord
from intarsia.format.registry import read_manifest
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk
from tests.budgets import in_steps_of
from tests.checkpoints import (
    assert_same,
    bits,
    files_of,
    llama_config,
    matrix,
    model,
    python,
    random_tensor,
    read_dcp,
    read_hf,
    write_dcp,
    write_hf,
)
from tests.checkpoints import intarsia as cli

CONFIG = llama_config()
MESHES = ["", "tp=3", "fsdp=4,replicate=2", "tp=2,fsdp=3,pp=2,ep=2"]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.one_in(2)
def test_what_torch_saved_goes_to_hf_and_back(tmp_path: Path, mesh: str) -> None:
    tensors = matrix()
    src = write_dcp(tmp_path / "src", tensors)
    intarsia.convert(src, tmp_path / "hf", to="hf")
    assert_same(read_hf(tmp_path / "hf"), tensors)
    intarsia.convert(tmp_path / "hf", tmp_path / "back", to="dcp", mesh=mesh)
    assert_same(read_dcp(tmp_path / "back"), tensors)
    assert intarsia.verify(src, tmp_path / "back")


@pytest.mark.parametrize("count", [1, 3])
def test_safetensors_in_place_of_chunks_are_refused_by_what_wrote_them(
    tmp_path: Path, count: int
) -> None:
    writer = dcp.FileSystemWriter(tmp_path, serialization_format=SerializationFormat.SAFETENSORS)
    held = {f"w{k}": torch.randn(4, 4) for k in range(count)}
    dcp.save(dict(held), storage_writer=writer, no_dist=True)
    with pytest.raises(FormatError, match=r"serialization_format SAFETENSORS[\s\S]*without that"):
        intarsia.convert(tmp_path, tmp_path / "out", to="hf")
    assert "malformed" in {fault.kind for fault in intarsia.verify(tmp_path).faults}
    with pytest.raises(CheckpointException):
        dcp.load(dict(held), checkpoint_id=tmp_path, no_dist=True)


def test_what_python_3_11_0_to_3_11_3_saved_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those versions pickle the members of an enumeration by `getattr`."""
    monkeypatch.setattr(enum.Enum, "__reduce_ex__", lambda x, _: (getattr, (type(x), x.name)))
    tensors = matrix()
    src = write_dcp(tmp_path / "src", tensors)
    assert b"getattr" in (src / ".metadata").read_bytes()
    intarsia.convert(src, tmp_path / "hf", to="hf")
    assert_same(read_hf(tmp_path / "hf"), tensors)


def test_tensors_of_one_storage_and_strange_strides_are_read(tmp_path: Path) -> None:
    base = random_tensor((12, 10), torch.float32)
    state = {
        "whole": base,
        "tied": base,
        "transposed": base.t(),
        "permuted": random_tensor((2, 3, 5), torch.bfloat16).permute(2, 0, 1),
        "rows": base[3:7],
        "strided": base[::3, 1::4],
        "expanded": torch.tensor([1.5, -2.0]).expand(3, 2),
        "one": base[4:5, 6:7],
    }
    src = write_dcp(tmp_path / "src", state)
    wanted = {name: x.contiguous().clone() for name, x in state.items()}
    intarsia.convert(src, tmp_path / "hf", to="hf")
    assert_same(read_hf(tmp_path / "hf"), wanted)
    for k, mesh in enumerate(MESHES):
        intarsia.convert(src, tmp_path / f"dcp{k}", to="dcp", mesh=mesh)
        assert_same(read_dcp(tmp_path / f"dcp{k}"), wanted)
        assert intarsia.verify(src, tmp_path / f"dcp{k}")


def replace_blob(src: Path, blob: bytes) -> None:
    """Put another archive in the place of a checkpoint's only tensor."""
    (file,) = src.glob("*.distcp")
    described = dcp.FileSystemReader(src).read_metadata()
    (where,) = described.storage_data.values()
    where.offset, where.length = 0, len(blob)
    file.write_bytes(blob)
    (src / ".metadata").write_bytes(pickle.dumps(described))


@pytest.mark.parametrize("view", ["rows", "columns", "element"])
def test_a_view_saved_with_its_whole_storage_is_read(tmp_path: Path, view: str) -> None:
    base = random_tensor((12, 10), torch.bfloat16)
    part = {"rows": base[3:7], "columns": base[2:9, 4:6], "element": base[5, 5]}[view]
    out = io.BytesIO()
    torch.save(part, out)
    src = write_dcp(tmp_path / "src", {"w": part.contiguous()})
    replace_blob(src, out.getvalue())
    assert_same(read_dcp(src), {"w": part})
    intarsia.convert(src, tmp_path / "hf", to="hf")
    assert_same(read_hf(tmp_path / "hf"), {"w": part})


OBJECTS = {
    "epoch": 3,
    "names": ["a", "b"],
    "nested": {"lr": 0.1, "betas": (0.9, 0.95), "none": None},
    "text": "ünï",
}


@pytest.mark.parametrize("with_state", [True, False])
def test_objects_beside_tensors_arrive_as_the_bytes_they_were(
    tmp_path: Path, with_state: bool
) -> None:
    tensors = {"w": torch.randn(4, 3)}
    if with_state:
        tensors["optimizer.state.w.exp_avg"] = torch.randn(4, 3)
    src = write_dcp(tmp_path / "src", {**tensors, **OBJECTS})
    manifest = read_manifest(src)
    assert len(manifest.entries) >= 4
    intarsia.convert(src, tmp_path / "hf", to="hf")
    assert read_manifest(tmp_path / "hf").entries.keys() == manifest.entries.keys()
    intarsia.convert(tmp_path / "hf", tmp_path / "back", to="dcp", mesh="fsdp=2")
    target = {name: torch.zeros_like(x) for name, x in tensors.items()}
    target |= {
        "epoch": None,
        "names": [None, None],
        "text": "",
        "nested": dict.fromkeys(OBJECTS["nested"]),
    }
    dcp.load(target, checkpoint_id=tmp_path / "back", no_dist=True)
    assert {name: target[name] for name in OBJECTS} == OBJECTS
    assert_same({n: target[n] for n in tensors}, tensors)


def test_objects_of_the_model_are_named_without_its_section_as_its_tensors_are(
    tmp_path: Path,
) -> None:
    class Counting(torch.nn.Linear):
        seen = 5

        def get_extra_state(self) -> Any:
            return {"seen": self.seen}

        def set_extra_state(self, state: Any) -> None:
            self.seen = state["seen"]

    saved, into = Counting(2, 3), Counting(2, 3)
    src = write_dcp(tmp_path / "src", {"model": saved.state_dict(), "epoch": 3})
    intarsia.convert(src, tmp_path / "out", to="dcp", mesh="fsdp=2")
    into.seen = 0
    state = into.state_dict()
    dcp.load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    into.load_state_dict(state)
    assert into.seen == 5
    assert intarsia.verify(src, tmp_path / "out")
    assert sorted(read_manifest(src).entries) == ["_extra_state.seen", "epoch"]
    both = {"model": {"w": torch.ones(2), "epoch": 3}, "epoch": 4}
    assert sorted(read_manifest(write_dcp(tmp_path / "both", both)).entries) == [
        "epoch", "model.epoch",
    ]  # fmt: skip


def test_dropping_training_state_drops_objects_too(tmp_path: Path) -> None:
    src = write_dcp(tmp_path / "src", {"w": torch.randn(4), **OBJECTS})
    intarsia.convert(src, tmp_path / "out", to="dcp", optimizer="drop")
    assert not read_manifest(tmp_path / "out").entries
    assert set(read_dcp(tmp_path / "out")) == {"w"}


def blobs(folder: Path) -> list[bytes]:
    """Every archive that the metadata of a checkpoint points to."""
    described = dcp.FileSystemReader(folder).read_metadata()
    found = []
    for where in described.storage_data.values():
        data = (folder / where.relative_path).read_bytes()
        found.append(data[where.offset : where.offset + where.length])
    return found


@pytest.mark.parametrize("window", [256, 8 << 20])
def test_every_archive_that_we_write_has_the_right_checksum(
    tmp_path: Path, monkeypatch, window: int
) -> None:

    in_steps_of(monkeypatch, window)
    src = write_hf(tmp_path / "hf", matrix() | model(CONFIG))
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="tp=2,fsdp=3")
    found = blobs(tmp_path / "dcp")
    assert len(found) > 200
    for blob in found:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            assert archive.testzip() is None
    written = [d for name, d in files_of(tmp_path / "dcp").items() if name.endswith(".distcp")]
    assert sum(map(len, found)) <= sum(map(len, written)) <= sum(len(blob) + 64 for blob in found)


def test_each_archive_is_a_tensor_that_torch_loads_alone(tmp_path: Path) -> None:
    src = write_hf(tmp_path / "hf", {"w": random_tensor((6, 5), torch.bfloat16)})
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="fsdp=2")
    parts = [torch.load(io.BytesIO(blob), weights_only=True) for blob in blobs(tmp_path / "dcp")]
    assert bits(torch.cat(parts)) == bits(random_tensor((6, 5), torch.bfloat16))


def test_replicas_share_the_writing(tmp_path: Path) -> None:
    tensors = {f"w{k}": torch.randn(8, 8) for k in range(16)}
    src = write_hf(tmp_path / "hf", tensors)
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="replicate=4")
    sizes = [p.stat().st_size for p in (tmp_path / "dcp").glob("*.distcp")]
    assert len(sizes) == 4
    assert max(sizes) <= 1.2 * min(sizes)


def test_only_the_bytes_of_a_slice_are_read(tmp_path: Path) -> None:
    big = torch.randn(1000, 256)
    src = write_dcp(tmp_path / "src", {"w": big})
    with intarsia.open(src) as opened:
        assert opened["w"][10:12].equal(big[10:12])
        assert opened.read_bytes < 8192


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    src = write_hf(tmp_path / "hf", model(CONFIG), CONFIG)
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="fsdp=4")
    return tmp_path / "dcp"


def test_a_folder_that_accelerate_did_not_name_is_listed_and_not_read_as_nothing(
    tmp_path: Path,
) -> None:
    write_dcp(tmp_path / "run" / "pytorch_model_fsdp_0_old", {"model": {"a.b": torch.ones(2)}})
    with pytest.raises(FormatError, match="there is 1 below it: pytorch_model_fsdp_0_old"):
        intarsia.open(tmp_path / "run")


def test_a_missing_data_file_is_named(sharded: Path) -> None:
    (sharded / "__2_0.distcp").unlink()
    for words in (["inspect", sharded], ["convert", sharded, sharded.parent / "out", "--to", "hf"]):
        answer = cli(*words)
        assert answer.status == 2
        assert "lacks 1 of 4 data files" in answer.err
        assert "__2_0.distcp" in answer.err
    assert not (sharded.parent / "out").exists()


def test_a_truncated_data_file_is_refused(sharded: Path) -> None:
    file = sharded / "__1_0.distcp"
    os.truncate(file, file.stat().st_size - 1)
    answer = cli("convert", sharded, sharded.parent / "out", "--to", "hf")
    assert answer.status == 2
    assert "__1_0.distcp has" in answer.err
    assert "its chunks end at" in answer.err


def test_the_data_file_of_another_checkpoint_is_refused(sharded: Path) -> None:
    """Equal in length, so only the archives inside tell."""
    other = (sharded / "__1_0.distcp").read_bytes()
    (sharded / "__1_0.distcp").write_bytes(other[64:] + other[:64])
    with pytest.raises(IntarsiaError):
        intarsia.convert(sharded, sharded.parent / "out", to="hf")
    assert not (sharded.parent / "out").exists()


def test_metadata_cut_anywhere_is_refused(sharded: Path) -> None:
    whole = (sharded / ".metadata").read_bytes()
    for cut in range(0, len(whole), 97):
        (sharded / ".metadata").write_bytes(whole[:cut])
        with pytest.raises(FormatError):
            read_manifest(sharded)


class Bomb:
    """An object whose unpickling would make a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("where", ["alone", "inside"])
def test_metadata_that_would_run_code_is_refused_and_runs_nothing(
    sharded: Path, tmp_path: Path, where: str
) -> None:
    marker = tmp_path / "marker"
    payload: object = Bomb(marker)
    if where == "inside":
        described = dcp.FileSystemReader(sharded).read_metadata()
        described.planner_data = payload
        payload = described
    (sharded / ".metadata").write_bytes(pickle.dumps(payload))
    with pytest.raises(UnsafeError):
        read_manifest(sharded)
    done = python("-m", "intarsia", "convert", sharded, tmp_path / "out", "--to", "hf")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("intarsia: ")
    assert not marker.exists()
    assert not (tmp_path / "out").exists()
    pickle.loads((sharded / ".metadata").read_bytes())
    assert marker.exists(), "the bomb was no bomb, so this test proves nothing"


def test_a_tensor_archive_that_would_run_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    src = write_dcp(tmp_path / "src", {"w": torch.zeros(4)})
    (file,) = src.glob("*.distcp")
    bomb = pickle.dumps(Bomb(marker), protocol=2)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(file.read_bytes())) as old, zipfile.ZipFile(out, "w") as new:
        for item in old.infolist():
            data = bomb if item.filename.endswith("data.pkl") else old.read(item)
            new.writestr(item.filename, data)
    replace_blob(src, out.getvalue())
    answer = cli("convert", src, tmp_path / "out", "--to", "hf")
    assert answer.status == 2
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("where", ["../evil.distcp", "/etc/passwd", "sub/../../evil"])
def test_metadata_that_points_outside_its_folder_is_refused(sharded: Path, where: str) -> None:
    described = dcp.FileSystemReader(sharded).read_metadata()
    next(iter(described.storage_data.values())).relative_path = where
    (sharded / ".metadata").write_bytes(pickle.dumps(described))
    with pytest.raises(FormatError):
        read_manifest(sharded)


def test_metadata_with_a_chunk_missing_is_not_proven(sharded: Path) -> None:
    described = dcp.FileSystemReader(sharded).read_metadata()
    name = "model.layers.1.mlp.up_proj.weight"
    lost = described.state_dict_metadata[name].chunks.pop()
    (sharded / ".metadata").write_bytes(pickle.dumps(described))
    answer = cli("convert", sharded, sharded.parent / "out", "--to", "hf")
    assert answer.status == 1
    assert f"the chunks of `{name}`" in answer.err
    assert f"first missing {list(lost.offsets)}" in answer.err


def test_metadata_with_a_wrong_element_type_is_refused(sharded: Path) -> None:
    described = dcp.FileSystemReader(sharded).read_metadata()
    described.state_dict_metadata["model.norm.weight"].properties.dtype = torch.float16
    (sharded / ".metadata").write_bytes(pickle.dumps(described))
    with pytest.raises(FormatError, match=r"the metadata says F16 .*the archive holds BF16"):
        intarsia.convert(sharded, sharded.parent / "out", to="hf")
    assert not (sharded.parent / "out").exists()


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex32])
def test_an_element_type_that_no_file_of_ours_has_is_no_damage(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    src = write_dcp(tmp_path, {"w": torch.zeros(2, dtype=dtype)})
    with pytest.raises(
        UnsupportedError, match=rf"{dtype} of w is not supported[^\n]*\n.*another one"
    ):
        intarsia.open(src)
    with pytest.raises(UnsupportedError):
        intarsia.verify(src)


@pytest.mark.parametrize("shape", [(1 << 60,), (1 << 30, 1 << 30)])
def test_tensors_that_claim_far_more_than_is_stored_are_refused(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    data = sound.blob()
    chunk = Chunk(
        Box((0,) * len(shape), (1,) * (len(shape) - 1) + (4,)), "__0_0.distcp", 0, len(data)
    )
    record = TensorRecord("a", sound.F32, shape, (chunk,))
    src = sound.dcp(tmp_path / "src", sound.metadata_of(a=record), data)
    with pytest.raises(
        FormatError, match=r"describes 4194304\.00 TiB of tensors, but its files have 1\.54 KiB"
    ):
        read_manifest(src)


def test_tensors_that_lack_some_chunks_are_read_and_not_proven(tmp_path: Path) -> None:
    data = sound.blob()
    record = TensorRecord(
        "a", sound.F32, (1 << 24,), (Chunk(Box((5,), (4,)), "__0_0.distcp", 0, len(data)),)
    )
    src = sound.dcp(tmp_path / "src", sound.metadata_of(a=record), data)
    plan = intarsia.plan(src, to="hf")
    assert not plan.proven
    assert "16,777,212 of 16,777,216 elements" in str(plan.gaps[0])


def test_objects_alone_are_no_checkpoint(tmp_path: Path) -> None:
    """Torch puts a whole state dict into one object where it is told not to flatten it."""
    given = {"model": {"w": torch.ones(2)}, "step": 3}
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save(given, checkpoint_id=tmp_path / "dcp", planner=planner, no_dist=True)
    for call in (intarsia.open, lambda path: intarsia.convert(path, tmp_path / "out", to="hf")):
        with pytest.raises(FormatError, match="holds no tensor, only objects: `model`, `step`"):
            call(tmp_path / "dcp")
    assert not (tmp_path / "out").exists()
    (fault,) = intarsia.verify(tmp_path / "dcp").faults
    assert "flatten_state_dict" in fault.hint


def test_a_tensor_of_another_class_is_called_so_with_what_to_do(tmp_path: Path) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    held = {"w": TwoTensor(torch.randn(4, 4), torch.randn(4, 4)), "v": torch.randn(4, 4)}
    src = write_dcp(tmp_path / "src", held)
    (fault,) = intarsia.verify(src).faults
    assert "a plain tensor is expected, found torch" in fault.text
    assert fault.next == "save full or sharded plain tensors, dequantized, not a tensor subclass"
    with pytest.raises(FormatError, match=r"found torch[\w.]*TwoTensor[\s\S]*dequantized"):
        intarsia.convert(src, tmp_path / "out", to="hf")

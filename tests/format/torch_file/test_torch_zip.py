"""The archive of one tensor: read in one small read, written as torch writes it."""

from __future__ import annotations

import copy
import io
import itertools
import math
import os
import pickle
import re
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.dtypes import BY_NAME, BY_TORCH, DType
from intarsia.errors import FormatError, IntarsiaError, UnsafeError, UnsupportedError, UsageError
from intarsia.format.torch_file.inert import InertTensor
from intarsia.format.torch_file.torch_frame import frame, write_object
from intarsia.format.torch_file.torch_zip import (
    Payload,
    check_directory,
    read_crc,
    read_object,
    read_payload,
)
from intarsia.format.torch_file.zip_directory import END, END64, LOCAL, LOCATOR

SHAPES = [(), (0,), (3,), (2, 3), (0, 4), (4, 0, 2), (2, 3, 4), (2, 2, 2, 3), (300, 70), (70000,)]
F32 = BY_TORCH["float32"]


def saved(obj: Any) -> bytes:
    out = io.BytesIO()
    torch.save(obj, out)
    return out.getvalue()


def some_tensor(dtype: DType, shape: tuple[int, ...]) -> tuple[torch.Tensor, bytes]:
    raw = bytes(i * 37 % 2 for i in range(math.prod(shape) * dtype.itemsize))
    if not raw:
        return torch.empty(shape, dtype=getattr(torch, dtype.torch)), raw
    flat = torch.frombuffer(bytearray(raw), dtype=getattr(torch, dtype.torch))
    return flat.clone().reshape(shape), raw


def payload_of(blob: bytes) -> Payload:
    return read_payload(lambda at, size: blob[at : at + size], len(blob), "here")


def elements(blob: bytes) -> bytes:
    """The bytes of a tensor, gathered element by element through its strides."""
    p = payload_of(blob)
    stored = blob[p.start_bytes : p.start_bytes + p.length_bytes]
    index = torch.zeros(p.shape, dtype=torch.int64) + p.storage_offset
    for axis, step in enumerate(p.stride):
        steps = torch.arange(p.shape[axis]) * step
        index += steps.reshape([-1 if a == axis else 1 for a in range(len(p.shape))])
    size = p.dtype.itemsize
    return b"".join(stored[i * size : (i + 1) * size] for i in index.flatten().tolist())


@pytest.mark.parametrize("dtype", BY_NAME.values(), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_frame_is_what_torch_writes_to_the_byte(dtype: DType, shape: tuple[int, ...]) -> None:
    tensor, raw = some_tensor(dtype, shape)
    made = frame(dtype, shape)
    blob = made.head + raw + made.tail(zlib.crc32(raw))
    assert blob == saved(tensor)
    assert len(blob) == made.length_bytes
    assert len(made.head) == made.start_bytes
    assert made.start_bytes % 64 == 0
    back = torch.load(io.BytesIO(blob), weights_only=True)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert zipfile.ZipFile(io.BytesIO(blob)).testzip() is None


@pytest.mark.parametrize("dtype", BY_NAME.values(), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tensor_of_torch_is_found_by_what_lies_around_it(
    dtype: DType, shape: tuple[int, ...]
) -> None:
    tensor, raw = some_tensor(dtype, shape)
    blob = saved(tensor)
    reads: list[int] = []

    def read(at: int, size: int) -> bytes:
        reads.append(size)
        return blob[at : at + size]

    found = read_payload(read, len(blob), "here")
    assert (found.dtype, found.shape, found.stride) == (dtype, shape, tensor.stride())
    assert blob[found.start_bytes :][: found.length_bytes] == raw
    assert [size <= most for size, most in zip(reads, (1024, 24), strict=False)] == [True] * len(
        reads
    )
    assert read_crc(read, len(blob), found, "here") == zlib.crc32(raw)


def test_views_are_found_by_stride_and_offset() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    for view in (base.T, base[1:3, ::2], base[2], base[:, 3], torch.ones(1).expand(5)):
        assert elements(saved(view)) == view.contiguous().numpy().tobytes()
    assert elements(saved(torch.nn.Parameter(base))) == base.numpy().tobytes()


def test_an_archive_with_another_head_is_read_by_its_directory() -> None:
    plain = zipfile.ZipFile(io.BytesIO(saved(torch.arange(5.0))))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as other:
        for name in reversed(plain.namelist()):
            other.writestr(name, plain.read(name))
    found = payload_of(out.getvalue())
    assert out.getvalue()[found.start_bytes :][:20] == torch.arange(5.0).numpy().tobytes()


def test_a_compressed_archive_is_refused() -> None:
    plain = zipfile.ZipFile(io.BytesIO(saved(torch.zeros(5))))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as other:
        for name in plain.namelist():
            other.writestr(name, plain.read(name))
    with pytest.raises(FormatError, match="compressed"):
        payload_of(out.getvalue())


def test_an_archive_without_checksums_is_read() -> None:
    torch.serialization.set_crc32_options(False)
    try:
        blob = saved({"w": torch.arange(5.0)})
        alone = saved(torch.arange(5.0))
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_object(blob, "here")["w"].shape == (5,)
    read = lambda at, size: alone[at : at + size]  # noqa: E731
    assert read_crc(read, len(alone), payload_of(alone), "here") is None


def test_beyond_four_gib_the_frame_is_zip64(tmp_path: Path) -> None:
    """A sparse file: nothing of the 4 GiB is allocated or read."""
    size = (1 << 32) + 10
    made = frame(BY_TORCH["uint8"], (size,))
    path = tmp_path / "large.pt"
    with path.open("wb") as file:
        file.write(made.head)
        file.seek(made.start_bytes + size)
        file.write(made.tail(0x6B87B1EC))
        assert file.tell() == made.length_bytes
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("archive/data/0")
        assert (info.file_size, info.CRC) == (size, 0x6B87B1EC)
        assert archive.read("archive/version") == b"3\n"
    assert torch.load(path, mmap=True, weights_only=True).shape == (size,)
    with path.open("rb") as file:

        def read(at: int, count: int) -> bytes:
            return os.pread(file.fileno(), count, at)

        found = read_payload(read, made.length_bytes, "here")
        assert (found.start_bytes, found.length_bytes) == (made.start_bytes, size)
        assert read_crc(read, made.length_bytes, found, "here") == 0x6B87B1EC


def test_a_tensor_that_ends_beyond_its_blob_gives_both_numbers() -> None:
    made = frame(F32, (1000,))
    lying = made.head + bytes(40) + made.tail(0)
    with pytest.raises(FormatError, match=r"4000 bytes .* blob of 1[0-9]{3} - at here"):
        payload_of(lying)


def test_a_view_that_ends_beyond_its_storage_is_refused() -> None:
    blob = saved(torch.zeros(2, 3)).replace(b"K\x02K\x03\x86", b"K\x09K\x03\x86")
    with pytest.raises(FormatError, match="CRC-32"):
        payload_of(blob)
    blank = pickle_swapped(saved(torch.zeros(2, 3)), b"K\x02K\x03\x86", b"K\x09K\x03\x86")
    with pytest.raises(FormatError, match="ends at byte 108 of the 24 stored"):
        payload_of(blank)


def pickle_swapped(blob: bytes, old: bytes | None, new: bytes) -> bytes:
    """The same archive with other opcodes in data.pkl, and checksums that fit them."""
    plain = zipfile.ZipFile(io.BytesIO(blob))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as other:
        for name in plain.namelist():
            content = plain.read(name)
            if name.endswith(".pkl"):
                content = new if old is None else content.replace(old, new)
            other.writestr(name, content)
    return out.getvalue()


def test_a_tensor_subclass_is_refused_by_name() -> None:
    # What a quantized tensor looks like: a class of a framework, called with its parts.
    swapped = pickle_swapped(
        saved(torch.zeros(2)),
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"ctransformer_engine.pytorch.tensor\nFloat8Tensor\n",
    )
    with pytest.raises(FormatError, match=r"transformer_engine\.pytorch\.tensor\.Float8Tensor"):
        payload_of(swapped)


def test_a_class_in_place_of_a_tensor_is_refused_by_name() -> None:
    named = b"\x80\x02ctransformer_engine.pytorch.tensor\nFloat8Tensor\n."
    swapped = pickle_swapped(saved(torch.zeros(2)), None, named)
    with pytest.raises(FormatError, match=r"transformer_engine\.pytorch\.tensor\.Float8Tensor"):
        payload_of(swapped)


def test_a_sparse_tensor_is_refused_by_name() -> None:
    with pytest.raises(FormatError, match="_rebuild_sparse_tensor"):
        payload_of(saved(torch.eye(3).to_sparse()))


@pytest.mark.parametrize("inside", [False, True])
def test_elements_that_torch_conjugates_or_negates_as_it_loads_are_not_read_as_stored(
    inside: bool,
) -> None:
    for x in (torch.ones(3, dtype=torch.complex64).conj(), torch._neg_view(torch.ones(3))):
        said = r"(conj|neg).* - at here\n  hint: save the tensor with resolve_conj\(\)\.resolve_neg\(\)"
        with pytest.raises(UnsupportedError, match=said):
            read_object(saved({"x": x}), "here") if inside else payload_of(saved(x))
        resolved = saved(x.resolve_conj().resolve_neg())
        assert elements(resolved) == bytes(x.resolve_conj().resolve_neg().view(torch.uint8))


def test_an_element_type_that_has_no_name_here_is_refused() -> None:
    with pytest.raises(FormatError, match="ComplexDoubleStorage"):
        payload_of(saved(torch.zeros(2, dtype=torch.complex128)))


def test_big_endian_bytes_are_refused() -> None:
    blob = saved(torch.zeros(2))
    start = blob.index(b"little")
    turned = bytearray(blob)
    turned[start : start + 6] = b"big\0\0\0"
    turned[start + 10 : start + 14] = zlib.crc32(b"big\0\0\0").to_bytes(4, "little")
    with pytest.raises(FormatError, match="byte order"):
        payload_of(bytes(turned))


class Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_a_hostile_archive_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    blob = saved([torch.zeros(2), Runs(f"touch {marker}")])
    with pytest.raises(UnsafeError):
        payload_of(blob)
    with pytest.raises(UnsafeError):
        read_object(blob, "here")
    with pytest.raises(UnsafeError):
        read_object(pickle.dumps(Runs(f"touch {marker}")), "here")
    assert not marker.exists()


PLAIN = {"a": [1, 2.5, "x", b"q", (1, 2)], 3: True, "n": None, "big": 2**80}


@pytest.mark.parametrize("obj", [None, [], "s", PLAIN, [PLAIN, PLAIN]], ids=repr)
def test_an_object_is_written_as_torch_writes_it(obj: Any) -> None:
    blob = write_object(obj)
    assert blob == saved(obj)
    assert torch.load(io.BytesIO(blob), weights_only=True) == obj
    assert read_object(blob, "here") == obj
    assert read_object(pickle.dumps(obj), "here") == obj


def test_only_plain_objects_are_written() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    for obj in (object(), {"t": torch.zeros(1)}, [Runs("")], nested):
        with pytest.raises(UsageError):
            write_object(obj)


def test_tensors_inside_an_object_bring_their_bytes() -> None:
    base = torch.arange(6.0).reshape(2, 3)
    found = read_object(saved({"w": base, "same": base[1], "f8": base.to(torch.float8_e5m2)}), "x")
    w = found["w"]
    assert isinstance(w, InertTensor)
    assert (w.dtype, w.shape, w.storage.data) == (F32, (2, 3), base.numpy().tobytes())
    assert found["same"].storage_offset == 3
    assert found["f8"].dtype is BY_TORCH["float8_e5m2"]


def test_a_file_from_before_the_zip_format_is_named_as_such() -> None:
    out = io.BytesIO()
    torch.save({"w": 1}, out, _use_new_zipfile_serialization=False)
    with pytest.raises(FormatError, match=r"before torch 1\.6"):
        read_object(out.getvalue(), "here")


BLOBS = [saved(torch.arange(6.0).reshape(2, 3)), saved(torch.zeros(3, dtype=torch.uint16))]
BLOBS += [saved({"a": torch.zeros(2), "b": [1, "x"]}), pickle.dumps(PLAIN)]


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(BLOBS), st.data())
def test_a_damaged_archive_raises_nothing_but_our_errors(blob: bytes, data: st.DataObject) -> None:
    broken = bytearray(blob)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(broken) - 1)))
        broken[at : at + data.draw(st.sampled_from([0, 1, 2, 4, 300]))] = data.draw(
            st.binary(max_size=4)
        )
    for read in (payload_of, lambda b: read_object(b, "here")):
        with suppress(IntarsiaError):
            read(bytes(broken))


@pytest.mark.parametrize("blob", BLOBS[:3])
def test_every_truncation_is_noticed_or_harmless(blob: bytes) -> None:
    for length in range(0, len(blob), 7):
        with pytest.raises(FormatError):
            read_object(blob[:length], "here")


def test_members_that_lie_on_one_another_are_refused_before_they_are_read() -> None:
    """A directory may name one member many times, so that little data would be read as much."""
    data = saved(torch.ones(64, 64))
    out = io.BytesIO(data)
    with zipfile.ZipFile(out, "a") as archive:
        big = next(i for i in archive.infolist() if i.filename.endswith("data/0"))
        for k in range(3):
            twin = copy.copy(big)
            twin.filename = twin.orig_filename = f"archive/other/{k}"
            archive.filelist.append(twin)
        archive._didModify = True  # type: ignore[attr-defined]
    held = out.getvalue()
    seen: list[int] = []

    def read(at: int, size: int) -> bytes:
        seen.append(size)
        return held[at : at + size]

    payload = read_payload(read, len(held), "here")
    seen.clear()
    with pytest.raises(FormatError, match="overlap"):
        check_directory(read, len(held), payload, None, "here")
    assert sum(seen) < len(held)


def test_an_end_and_names_by_which_torch_finds_nothing_are_damage() -> None:
    """Whatever byte of the last records, or of those that members begin with, is another one: torch reads
    the tensor, or it is noticed."""
    whole = saved(torch.arange(6.0))
    assert soundly_filed(whole)
    ends = range(len(whole) - END64.size - LOCATOR.size - END.size, len(whole))
    at = whole.rindex(b"archive/data.pkl")
    heads = (x.start() + k for x in re.finditer(b"PK\3\4", whole) for k in range(LOCAL.size))
    for place in (*ends, *range(at, at + len(b"archive/data.pkl")), *heads):
        blob = bytearray(whole)
        blob[place] ^= 0x58
        assert not soundly_filed(bytes(blob)) or torch_reads(bytes(blob)), place


def soundly_filed(blob: bytes) -> bool:
    def read(at: int, size: int) -> bytes:
        return blob[at : at + size]

    try:
        payload = read_payload(read, len(blob), "here")
        crc = read_crc(read, len(blob), payload, "here")
        check_directory(read, len(blob), payload, crc, "here")
    except FormatError:
        return False
    return True


def torch_reads(blob: bytes) -> bool:
    try:
        return torch.equal(torch.load(io.BytesIO(blob)), torch.arange(6.0))
    except Exception:
        return False


def test_a_blob_whose_front_is_another_one_is_read_anew() -> None:
    blobs = [saved(torch.arange(6).reshape(shape)) for shape in ((2, 3), (3, 2), (2, 3))]
    assert len(set(map(len, blobs))) == 1
    assert [payload_of(blob).shape for blob in blobs] == [(2, 3), (3, 2), (2, 3)]
    with pytest.raises(FormatError):
        payload_of(blobs[0].replace(b"LongStorage", b"LungStorage"))


def test_every_damaged_byte_before_the_elements_is_noticed_or_harmless() -> None:
    """The place of the elements follows from lengths in the front: one that is wrong shifts them all."""
    whole = saved(torch.arange(40.0))
    front = payload_of(whole).front
    for place, bit in itertools.product(range(len(front)), range(8)):
        blob = bytearray(whole)
        blob[place] ^= 1 << bit
        with suppress(IntarsiaError):
            assert elements(bytes(blob)) == torch.arange(40.0).numpy().tobytes(), (place, bit)


def test_a_storage_that_is_cut_short_inside_its_archive_is_refused() -> None:
    plain = zipfile.ZipFile(io.BytesIO(saved(torch.arange(40.0))))
    for lost in (1, 2, 16):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as other:
            for name in plain.namelist():
                content = plain.read(name)
                other.writestr(name, content[:-lost] if name.endswith("data/0") else content)
        with pytest.raises(FormatError, match="160 bytes from byte"):
            payload_of(out.getvalue())

"""Archives that end alike are known by their bytes, and none that a check of its directory would refuse."""

from __future__ import annotations

import io
import random
import zipfile
import zlib

import numpy as np
import pytest
import torch

from intarsia.errors import FormatError
from intarsia.format.torch_file.archive_end import Ending, ending_of
from intarsia.format.torch_file.torch_zip import Payload, check_directory, read_crc, read_payload
from tests.format.torch_file.test_torch_zip import saved


def payload_of(blob: bytes) -> Payload:
    return read_payload(lambda at, size: blob[at : at + size], len(blob), "here")


def ending(blob: bytes) -> Ending | None:
    return ending_of(lambda at, size: blob[at : at + size], len(blob), payload_of(blob), "here")


def end_of(blob: bytes) -> bytes:
    payload = payload_of(blob)
    return blob[payload.start_bytes + payload.length_bytes :]


def checked(blob: bytes) -> int | FormatError | None:
    """What a check of the directory says: the checksum that is recorded, or what is wrong."""
    try:
        payload = payload_of(blob)
        read = lambda at, size: blob[at : at + size]  # noqa: E731
        crc = read_crc(read, len(blob), payload, "here")
        check_directory(read, len(blob), payload, crc, "here")
    except FormatError as error:
        return error
    return crc


def recorded(known: Ending, end: bytes) -> int | None:
    """The checksum that is recorded in an end; None where that is not as it must be."""
    (sound,), (crc,) = known.recorded(np.frombuffer(end, np.uint8)[None])
    return int(crc) if sound else None


@pytest.mark.parametrize("shape", [(), (3,), (8, 128), (70000,)], ids=str)
def test_an_archive_of_torch_is_known_by_another_of_its_shape(shape: tuple[int, ...]) -> None:
    one, other = torch.randn(shape), torch.randn(shape)
    known = ending(saved(one))
    assert known is not None
    assert recorded(known, end_of(saved(other))) == zlib.crc32(other.numpy().tobytes())


def test_archives_without_checksums_are_known_by_each_other() -> None:
    torch.serialization.set_crc32_options(False)
    try:
        one, other = saved(torch.randn(40)), saved(torch.randn(40))
    finally:
        torch.serialization.set_crc32_options(True)
    known = ending(one)
    assert known is not None
    assert recorded(known, end_of(other)) == 0


def test_what_is_known_with_any_byte_changed_would_pass_a_check_of_its_directory() -> None:
    known, blob = ending(saved(torch.randn(40))), saved(torch.randn(40))
    assert known is not None
    start = len(blob) - len(end_of(blob))
    number, taken = random.Random(5), 0
    for at in range(start, len(blob)):
        bad = bytearray(blob)
        bad[at] ^= number.randrange(1, 256)
        found = recorded(known, bytes(bad[start:]))
        assert found is None or found == checked(bytes(bad)), at
        taken += found is not None
    assert taken == 0, "a single byte has nothing that it agrees with"


def with_identity(blob: bytes, content: bytes, crc: int, beside: int) -> bytes:
    """An archive with another `serialization_id`, its checksum in the directory and beside it."""
    record = blob.rfind(b"PK\1\2")
    after = blob.find(b"PK\7\x08" + blob[record + 16 : record + 20])
    changed = bytearray(blob)
    changed[after - 40 : after] = content
    changed[after + 4 : after + 8] = beside.to_bytes(4, "little")
    changed[record + 16 : record + 20] = crc.to_bytes(4, "little")
    return bytes(changed)


def test_an_identity_is_known_by_its_checksum_alone() -> None:
    blob = saved(torch.randn(40))
    known, content = ending(blob), bytes(range(40))
    assert known is not None
    crc, own = zlib.crc32(content), checked(blob)
    sound = with_identity(blob, content, crc, crc)
    assert recorded(known, end_of(sound)) == checked(sound) == own
    wrong = with_identity(blob, content, crc ^ 1, crc ^ 1)
    assert recorded(known, end_of(wrong)) is None
    assert isinstance(checked(wrong), FormatError)
    assert recorded(known, end_of(with_identity(blob, content, crc, crc ^ 1))) is None


def test_nothing_is_known_by_an_archive_that_torch_does_not_write() -> None:
    plain = zipfile.ZipFile(io.BytesIO(saved(torch.randn(40))))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as other:
        for name in plain.namelist():
            other.writestr(name, plain.read(name))
    assert ending(out.getvalue()) is None
    assert ending(saved(torch.empty(0))) is None


def test_nothing_is_known_by_an_archive_whose_members_lie_on_one_another() -> None:
    """What varies of one would be a part of the other."""
    blob = saved(torch.randn(40))
    record = blob.rfind(b"PK\1\2")
    size = int.from_bytes(blob[record + 20 : record + 24], "little")
    longer = blob[: record + 20] + (size + 8).to_bytes(4, "little") * 2 + blob[record + 28 :]
    assert ending(blob) is not None
    assert ending(longer) is None


def test_an_archive_with_bytes_between_its_members_is_known_by_its_like() -> None:
    """They may not vary."""
    one, other = (
        blob[:-2] + b"\2\0no" for blob in (saved(torch.randn(40)), saved(torch.randn(40)))
    )
    known = ending(one)
    assert known is not None
    assert recorded(known, end_of(other)) == checked(other)
    assert recorded(known, end_of(other[:-1] + b"x")) is None


def test_nothing_is_known_by_an_archive_of_which_a_member_reaches_into_the_tensor() -> None:
    """Its directory is right for these elements, and wrong for any others."""
    blob = bytearray(saved(torch.randn(40)))
    start = payload_of(bytes(blob)).start_bytes
    record = blob.rindex(b"archive/byteorder") - 46
    content = blob.index(b"little")
    size = start + 8 - content
    blob[record + 16 : record + 20] = zlib.crc32(blob[content : start + 8]).to_bytes(4, "little")
    blob[record + 20 : record + 28] = size.to_bytes(4, "little") * 2
    assert isinstance(checked(bytes(blob)), int)
    assert ending(bytes(blob)) is None

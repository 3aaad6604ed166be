"""The checksum of a whole from those of its parts."""

from __future__ import annotations

import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.run.sums.checksum import crc32, join

some = settings(max_examples=150, deadline=None)


@some
@given(st.lists(st.binary(max_size=400), max_size=8))
def test_parts_join_to_the_checksum_of_the_whole(parts: list[bytes]) -> None:
    whole = 0
    for part in parts:
        whole = join(whole, crc32(part), len(part))
    assert whole == zlib.crc32(b"".join(parts))


@given(st.binary(max_size=2000))
def test_the_fast_checksum_is_zlibs(data: bytes) -> None:
    assert crc32(data) == crc32(memoryview(data)) == zlib.crc32(data)


def test_long_parts_join() -> None:
    data = bytes(range(256)) * 40_000
    for cut in (0, 1, 4096, 4_999_999, len(data)):
        first, second = data[:cut], data[cut:]
        assert join(crc32(first), crc32(second), len(second)) == zlib.crc32(data)

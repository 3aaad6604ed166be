"""Damage that keeps most of a file's structure: flips, cuts, splices, lying lengths, odd words."""

from __future__ import annotations

import random

INTERESTING = (
    0,
    1,
    7,
    8,
    127,
    128,
    255,
    256,
    65535,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
)
WORDS = (
    b"-1", b"1e400", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b"9" * 5000, b'"\\ud800"', b"\x00",
    b"../x", b"[" * 70 + b"]" * 70, b"\x85", b"\x86", b"h\x00", b"R", b"b", b"(", b"t", b"u", b"2", b"0",
    b"cos\nsystem\n", b"ctorch\nSize\n", b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06",
    b"1000000000", b"4294967296", b'"x"', b"\xff\xff\xff\x7f",
)  # fmt: skip


def mutated(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """The file with one to four kinds of damage."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 4))):
        _damage(out, others, chance)
    return bytes(out[: 1 << 20])


def _damage(out: bytearray, others: list[bytes], chance: random.Random) -> None:
    at = chance.randrange(len(out) + 1)
    size = chance.choice((1, 1, 2, 4, 8, 16, 64))
    kind = chance.randrange(8)
    if kind == 0 and out:
        out[at % len(out)] ^= 1 << chance.randrange(8)
    elif kind == 1:
        out[at : at + size] = chance.randbytes(chance.choice((0, 1, size)))
    elif kind == 2:
        del out[at:]
    elif kind == 3:
        out[at:at] = out[at : at + size] * chance.choice((1, 2, 16))
    elif kind == 4:
        other = chance.choice(others)
        start = chance.randrange(len(other) + 1)
        out[at : at + size] = other[start : start + 4 * size]
    elif kind == 5:
        width = chance.choice((1, 2, 4, 8))
        number = chance.choice(INTERESTING) + chance.randrange(-1, 2)
        out[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    elif kind == 6:
        out[at : at + chance.choice((0, size))] = chance.choice(WORDS)
    else:
        _renumber(out, chance)


def _renumber(out: bytearray, chance: random.Random) -> None:
    """Replace a number that is written in digits."""
    places = [k for k, byte in enumerate(out) if 48 <= byte <= 57]
    if places:
        at = end = chance.choice(places)
        while end < len(out) and 48 <= out[end] <= 57:
            end += 1
        out[at:end] = str(chance.choice(INTERESTING) - chance.randrange(3)).encode()

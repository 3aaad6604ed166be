"""Exploits of the unpickler: small pickles that take gigabytes, hours, or the process."""

from __future__ import annotations

from pathlib import Path

from attacks import sound


def memo_index_of_gigabytes(folder: Path, canary: Path) -> None:
    """Six bytes have the memo grow to 2**31 places."""
    sound.dcp(folder, b"\x80\x02]r\xff\xff\xff\x7f.")


def integer_of_gigabytes(folder: Path, canary: Path) -> None:
    """LONG4 claims an integer of two gigabytes."""
    sound.dcp(folder, b"\x80\x02\x8b\xff\xff\xff\x7f.")


def key_that_is_hashed_forever(folder: Path, canary: Path) -> None:
    """A key of sixty nested pairs, each twice the one before it: its hash takes 2**60 steps."""
    pairs = b"".join(b"h\x00h\x00\x86q\x000" for _ in range(60))
    sound.dcp(folder, b"\x80\x02}()q\x000" + pairs + b"h\x00Nu.")


def key_that_ends_the_process(folder: Path, canary: Path) -> None:
    """A key of a million tuples inside each other: its hash runs off the C stack."""
    sound.dcp(folder, b"\x80\x02}()" + b"\x85" * 1_000_000 + b"Nu.")


def keys_that_collide(folder: Path, canary: Path) -> None:
    """Integers that are all equal in their hash make a dictionary quadratic."""
    many = b"".join(
        b"\x8a\x0c" + (k * ((1 << 61) - 1)).to_bytes(12, "little") + b"N" for k in range(1, 60_000)
    )
    sound.dcp(folder, b"\x80\x02}(" + many + b"u.")


def lists_nested_without_end(folder: Path, canary: Path) -> None:
    """Three hundred thousand lists inside each other."""
    sound.dcp(folder, b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b".")


def arguments_that_laugh(folder: Path, canary: Path) -> None:
    """Megatron's arguments hold a list of two lists of two lists …, sixty times over."""
    laugh = b"]q\x000" + b"".join(b"](h\x00h\x00eq\x000" for _ in range(60)) + b"h\x00"
    name = b"X\x04\x00\x00\x00args"
    sound.torch_dist(folder, b"\x80\x02}" + name + b"}X\x02\x00\x00\x00lr" + laugh + b"ss.")


def arguments_that_hold_themselves(folder: Path, canary: Path) -> None:
    """Megatron's arguments hold a list that holds itself."""
    loop = b"]q\x00h\x00a"
    name = b"X\x04\x00\x00\x00args"
    sound.torch_dist(folder, b"\x80\x02}" + name + b"}X\x02\x00\x00\x00lr" + loop + b"ss.")


def text_repeated_by_devices(folder: Path, canary: Path) -> None:
    """A device's name of a megabyte is copied by every call that takes an index."""
    kind = b"X" + (1 << 20).to_bytes(4, "little") + b"a" * (1 << 20) + b"q\x000"
    sound.dcp(folder, b"\x80\x02(" + kind + b"ctorch\ndevice\n(h\x00K\x01tR" * 20_000 + b"l.")


def endless_classes(folder: Path, canary: Path) -> None:
    """A hundred thousand classes of a framework, each of which needs a stand-in."""
    named = b"".join(b"ctorch\nA%d\n" % k for k in range(100_000))
    sound.dcp(folder, b"\x80\x02(" + named + b"l.")


def frame_that_lies(folder: Path, canary: Path) -> None:
    """A frame claims 2**62 bytes."""
    sound.dcp(folder, b"\x80\x04\x95" + (1 << 62).to_bytes(8, "little") + b"N.")


def metadata_that_is_no_record(folder: Path, canary: Path) -> None:
    """`.metadata` is a number."""
    sound.dcp(folder, b"\x80\x02K\x01.")

"""What is read of metadata as we write it is what a pickle's own machine finds there, or nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from intarsia.dtypes import BY_NAME
from intarsia.errors import IntarsiaError
from intarsia.format.dcp.metadata import Metadata, TensorRecord, read_metadata, read_pickled
from intarsia.format.dcp.metadata_write import Emitter, write_metadata
from intarsia.format.dcp.metadata_written import read_written
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Entry
from tests.fuzz.mutate_metadata import metadata_edited

BF16, F32 = BY_NAME["BF16"], BY_NAME["F32"]
PLACE = Emitter().opcodes.place


def tensor(name: str, at: int, dtype: str = "BF16") -> TensorRecord:
    """A tensor of two chunks in two files."""
    chunks = (
        Chunk(Box((0, 0), (2, 300)), "__0_0.distcp", at, 1300),
        Chunk(Box((2, 0), (2, 300)), "__1_0.distcp", at + (1 << 33), 1300),
    )
    return TensorRecord(name, BY_NAME[dtype], (4, 300), chunks)


SCALAR = TensorRecord("s", F32, (), (Chunk(Box((), ()), "__0_0.distcp", 9000, 100),))
NONE = TensorRecord("none", F32, (0, 3), ())
META = Metadata(
    {"a": tensor("a", 0), "ü": tensor("ü", 2000), "c": tensor("c", 4000, "F32"), "s": SCALAR},
    {"o": Entry("o", "__1_0.distcp", 70_000, 9), "p": Entry("p", "__1_0.distcp", 80_000, 9)},
    {"a": ("a",), "ü": ("m", 300, "ü"), "o": ("o",), "elsewhere": ("x",)},
)
MANY = Metadata({f"layers.{k}.w": tensor(f"layers.{k}.w", 3000 * k) for k in range(300)}, {}, {})
EDGES = [n for k in (8, 16, 24, 31, 40) for n in ((1 << k) - 1, 1 << k, (1 << k) + 77)]
FAR = Metadata({f"{n}": tensor(f"{n}", n) for n in EDGES}, {}, {})


def is_the_same(data: bytes) -> bool:
    """Whether a file is read as columns; what is found so is what is found of any file."""
    found = read_written(data)
    if found is not None:
        whole, lost = read_pickled(data, "here")
        assert not lost
        assert found == replace(whole, extra=found.extra)
        assert [*found.tensors] == [*whole.tensors]
        assert repr(found.extra) == repr(whole.extra)
    return found is not None


@pytest.mark.parametrize(
    "meta", [META, MANY, FAR, replace(META, tensors={**META.tensors, "none": NONE}), replace(META, tensors={})]
)  # fmt: skip
def test_what_we_wrote_is_read_as_columns(meta: Metadata) -> None:
    data = write_metadata(meta)
    assert is_the_same(data)
    assert replace(read_metadata(data, "here"), extra={}) == meta


def test_what_is_more_or_less_than_we_write_is_left_to_the_pickle() -> None:
    assert is_the_same(write_metadata(Metadata({}, {})))
    assert not is_the_same(b"")
    assert not is_the_same(write_metadata(META) + b".")


def changed(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """The file with one byte changed, lost or doubled, one after the other, and with parts moved."""
    for at in range(len(data)):
        for byte in {chance.randrange(256), data[at] ^ 1, data[at] ^ 16, *b"Kth"[at % 3 :][:1]}:
            yield data[:at] + bytes([byte]) + data[at + 1 :]
    for at in range(0, len(data), 3):
        yield data[:at] + data[at + 1 :]
        yield data[:at] + data[at : at + 1] + data[at:]
    for _ in range(500):
        one, two = sorted(chance.choices(range(len(data)), k=2))
        size = chance.choice((2, 5, 20, 60))
        yield data[:one] + data[two : two + size] + data[one + size :]


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.one_in(2)
def test_no_change_of_a_byte_is_read_otherwise_than_by_a_pickle(framed: bool) -> None:
    """With its length made right again, so that a change of it is seen, too."""
    data, columns = write_metadata(META), 0
    for each in changed(data, random.Random(5)):
        held = each[:3] + (len(each) - 11).to_bytes(8, "little") + each[11:] if framed else each
        try:
            columns += is_the_same(held)
        except IntarsiaError as error:
            raise AssertionError(f"{held!r} is read as columns, and refused") from error
    assert columns > 300, "names, numbers and places may be others"


def test_no_edit_of_a_record_is_read_otherwise_than_by_a_pickle() -> None:
    data, chance = write_metadata(META), random.Random(7)
    columns = 0
    for _ in range(600):
        with suppress(OverflowError):  # a number that cannot be written
            edited = metadata_edited(data, [data], chance)
            assert edited is not None
            columns += is_the_same(edited)
    assert 50 < columns < 600


SWAPPED = ((b"__0_0", b"__x_0"), (b"__1_0", b"__0_0"), (b"__x_0", b"__1_0"))
OTHERWISE = {
    "a small number in four bytes": ((b"K\4J", b"J\4\0\0\0J"),),
    "files in another order": SWAPPED,
    "a file by the name of a tensor": ((PLACE + b"h\x1b", PLACE + b"h\x15"),),
}


@pytest.mark.parametrize("changes", OTHERWISE.values(), ids=OTHERWISE)
def test_what_means_something_and_is_not_as_we_write_it_is_left_to_the_pickle(
    changes: tuple[tuple[bytes, bytes], ...],
) -> None:
    data = write_metadata(META)
    for before, after in changes:
        assert before in data
        data = data.replace(before, after)
    data = data[:3] + (len(data) - 11).to_bytes(8, "little") + data[11:]
    assert read_pickled(data, "here")[0].tensors.keys() == META.tensors.keys()
    assert read_written(data) is None


@pytest.mark.parametrize(("one", "other"), [(b"a", b"c"), (b"a", b"o"), (b"o", b"p")])
def test_two_of_one_name_are_left_to_the_pickle(one: bytes, other: bytes) -> None:
    """Of whose two keys a dict keeps the later value."""
    before, after = (b"X\1\0\0\0" + name for name in (one, other))
    data = write_metadata(replace(META, paths={}))
    assert read_written(data) is not None
    assert read_written(data.replace(before, after, 1)) is None


RECORD = tensor("a", 0)
BEYOND = replace(RECORD, chunks=(*RECORD.chunks, Chunk(Box((4, 0), (1, 300)), "f", 0, 1)))


def twice(box: Box) -> Metadata:
    return Metadata(
        {"a": replace(RECORD, chunks=tuple(replace(c, box=box) for c in RECORD.chunks))}, {}
    )


OTHERS = {
    "two chunks at one place": twice(RECORD.chunks[0].box),
    "two empty chunks at one place": twice(Box((0, 0), (0, 300))),
    "a chunk beyond the tensor": Metadata({"a": BEYOND}, {}),
    "a file outside": Metadata({"a": replace(RECORD, chunks=(replace(RECORD.chunks[0], file="../f"),))}, {}),
    "a place beyond every file": Metadata({"a": replace(RECORD, chunks=(replace(RECORD.chunks[0], start_bytes=(1 << 63) - 1),))}, {}),
    "a name that is half a character": Metadata({"\ud800": RECORD}, {}),
}  # fmt: skip


def test_an_element_type_is_no_text() -> None:
    data = write_metadata(Metadata({"bfloat16": replace(RECORD, name="bfloat16")}, {}))
    name, dtype = b"h\x15", b"h\x18"
    assert data.count(dtype) == 1
    assert is_the_same(data)
    assert not is_the_same(data.replace(dtype, name))


@pytest.mark.parametrize("meta", OTHERS.values(), ids=OTHERS)
def test_what_is_wrong_is_left_to_the_pickle_which_says_what_it_is(meta: Metadata) -> None:
    data = write_metadata(meta)
    assert read_written(data) is None
    with pytest.raises((IntarsiaError, UnicodeError)):
        read_metadata(data, "here")

"""A pickle is weighed before it is loaded: real ones pass, those that would explode do not."""

from __future__ import annotations

import pickle
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from intarsia.dtypes import BY_TORCH
from intarsia.errors import FormatError
from intarsia.format.dcp.metadata import Metadata, TensorRecord
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.format.torch_file import pickle_phrases, pickle_scan
from intarsia.format.torch_file.pickle_scan import MAX_KEYS, MAX_WEIGHT, check_pickle
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Entry
from tests.checkpoints import write_dcp

keys = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.tuples(st.integers(), st.text())
)
values = st.recursive(
    keys | st.floats(),
    lambda x: st.lists(x) | st.tuples(x, x) | st.dictionaries(keys, x) | st.frozensets(keys),
    max_leaves=30,
)


phrases = pytest.mark.skipif(
    not pickle_phrases.MATCHED_RIGHTLY, reason="this Python matches phrases wrongly"
)


@given(values, st.integers(0, 5))
def test_what_pickle_writes_passes(value: Any, protocol: int) -> None:
    check_pickle(pickle.dumps(value, protocol))


@pytest.mark.parametrize("protocol", range(6))
def test_the_state_of_a_random_generator_passes(protocol: int) -> None:
    check_pickle(pickle.dumps(random.Random(0).getstate(), protocol))


@pytest.mark.parametrize("protocol", range(6))
def test_a_value_that_is_shared_passes(protocol: int) -> None:
    shared = ("a", (1, 2))
    check_pickle(pickle.dumps([{shared: shared} for _ in range(1000)], protocol))


@phrases
def test_what_torch_writes_is_walked_in_phrases_unless_it_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {
        f"{k}": torch.zeros(2, 3, dtype=d) for k, d in enumerate([torch.bfloat16, torch.int8])
    }
    write_dcp(tmp_path, tensors | {"entry": {"step": 3}})
    data = (tmp_path / ".metadata").read_bytes()
    for limit, phrases in (
        (len(data), pickle_phrases.OPCODES),
        (len(data) - 1, pickle_phrases.all_phrases()),
    ):
        monkeypatch.setattr(pickle_phrases, "SHORT_BYTES", limit)
        walk = pickle_scan._Walk(data)
        walk.run()
        assert walk.phrase == phrases.match


def test_where_python_matches_phrases_wrongly_opcodes_are_walked_one_by_one(monkeypatch) -> None:
    """Python 3.11.2, which Debian 12 has, called what torch saved no pickle."""
    monkeypatch.setattr(pickle_phrases, "SHORT_BYTES", 0)
    monkeypatch.setattr(pickle_phrases, "MATCHED_RIGHTLY", False)
    monkeypatch.setattr(pickle_phrases, "all_phrases", lambda: pytest.fail("a phrase was used"))
    check_pickle(as_torch_writes(metadata_of(8)))


def test_python_before_3_11_5_is_known_by_what_it_matches() -> None:
    assert (sys.version_info >= (3, 11, 5)) == pickle_phrases.MATCHED_RIGHTLY


def metadata_of(chunks: int) -> bytes:
    """The metadata of tensors of one to five axes, as we write it."""
    tensors = {}
    for axes in range(1, 6):
        rest = (3,) * (axes - 1)
        boxes = [Box((2 * k, *[0] * (axes - 1)), (2, *rest)) for k in range(chunks)]
        placed = tuple(Chunk(box, "__0_0.distcp", 300 * k, 12) for k, box in enumerate(boxes))
        name = f"{axes}"
        tensors[name] = TensorRecord(name, BY_TORCH["bfloat16"], (2 * chunks, *rest), placed)
    return write_metadata(Metadata(tensors, {"e": Entry("e", "__0_0.distcp", 4000, 9)}))


def as_torch_writes(data: bytes) -> bytes:
    return pickle.dumps(pickle.loads(data), 4)


def as_ranks_write(data: bytes) -> bytes:
    """As torch writes what other ranks sent: every place has the name of its tensor in a text of its own."""
    metadata = pickle.loads(data)
    for index in metadata.storage_data:
        object.__setattr__(index, "fqn", "".join([*index.fqn, "'s name of its own"]))
    return pickle.dumps(metadata, 4)


def walked(data: bytes, phrase: Any) -> pickle_scan._Walk | None:
    """A walk with one set of phrases; None where it ends early."""
    walk = pickle_scan._Walk(data)
    walk.phrase = phrase.match
    try:
        walk.run()
    except (FormatError, IndexError, ValueError):
        return None
    return walk


@phrases
def test_phrases_weigh_no_less_than_their_opcodes_one_by_one() -> None:
    chance, passed = random.Random(0), 0
    written = metadata_of(3)
    for data in (written, as_torch_writes(written), as_ranks_write(written)):
        for _ in range(150):
            changed, at = bytearray(data), chance.randrange(len(data))
            if chance.random() < 0.5:
                changed[at] = chance.choice(b"hj)\x81\x94}(KMJN\x85\x86t]eubR\x00\x05")
            else:
                till = chance.randrange(at, min(len(data), at + 40))
                changed[at:till] = data[till : till + chance.randrange(60)]
            fast = walked(bytes(changed), pickle_phrases.all_phrases())
            slow = walked(bytes(changed), pickle_phrases.OPCODES)
            assert (fast is None) == (slow is None)
            if fast is not None and slow is not None:
                passed += 1
                assert len(fast.stack) == len(slow.stack)
                assert fast.marks == slow.marks
                assert len(fast.kinds) == len(slow.kinds)
                assert all(f >= s for f, s in zip(fast.kinds, slow.kinds, strict=True))
                assert all(fast.memo[slot] >= weight for slot, weight in slow.memo.items())
    assert passed > 50


@phrases
def test_a_chunk_that_torch_writes_takes_no_step_of_its_own() -> None:
    def steps(data: bytes) -> int:
        walk, taken = pickle_scan._Walk(data), list[int]()

        def counted(data: bytes, at: int) -> Any:
            taken.append(at)
            return pickle_phrases.all_phrases().match(data, at)

        walk.phrase = counted  # type: ignore[assignment]
        walk.run()
        return len(taken)

    few, many = metadata_of(20), metadata_of(220)
    assert steps(few) == steps(many)
    for written in (as_torch_writes, as_ranks_write):
        assert steps(written(many)) - steps(written(few)) < 150


def doubled(times: int, protocol: int) -> bytes:
    value: Any = ()
    for _ in range(times):
        value = (value, value)
    return pickle.dumps(value, protocol)


@pytest.mark.parametrize("protocol", [1, 2, 4])
def test_a_tuple_that_doubles_itself_is_refused_beyond_the_limit(protocol: int) -> None:
    check_pickle(doubled(8, protocol))
    with pytest.raises(FormatError, match=f"at most {MAX_WEIGHT}"):
        check_pickle(doubled(60, protocol))


def test_tuples_in_tuples_are_refused_beyond_the_limit() -> None:
    check_pickle(b"\x80\x02)" + b"\x85" * (MAX_WEIGHT - 1) + b".")
    with pytest.raises(FormatError, match="nested"):
        check_pickle(b"\x80\x02)" + b"\x85" * MAX_WEIGHT + b".")


def test_keys_that_may_collide_are_counted() -> None:
    check_pickle(pickle.dumps({(k,): None for k in range(MAX_KEYS)}, 2))
    with pytest.raises(FormatError, match="keys are tuples"):
        check_pickle(pickle.dumps({(k,): None for k in range(MAX_KEYS + 1)}, 2))
    check_pickle(pickle.dumps({str(k): (k,) for k in range(2 * MAX_KEYS)}, 2))


def test_the_chunks_of_a_tensor_are_weighed_where_its_properties_are_a_heavy_key() -> None:
    """The properties weigh near nine hundred, and each chunk uses them as the key of all of its fields."""
    nested = b"(" + b"K\x01" * 15 + b"t\x94(" + b"h\x01" * 3 + b"t\x94"
    tensor = b"h\x00)\x81\x94}\x94(h\x00h\x00)\x81\x94(" + b"h\x02" * 16 + b"t\x94b"
    shape = b"h\x00h\x00K\x01\x85\x94\x85\x94R\x94"
    chunk = b"h\x00)\x81\x94}\x94(" + b"h\x06K\x01" * 8 + b"ub"
    front = b"\x80\x04\x8c\x03abc\x94" + nested + tensor + shape + b"h\x00]\x94("
    check_pickle(front + chunk * 2 + b"eub.")
    with pytest.raises(FormatError, match="beyond its own size"):
        check_pickle(front + chunk * (MAX_KEYS // 8) + b"eub.")


@pytest.mark.parametrize("opcode", [b"q\xff", b"r\xff\xff\xff\x7f", b"p999999999\n", b"p-1\n", b"p" + b"9" * 5000 + b"\n"])  # fmt: skip
def test_a_memo_index_beyond_the_pickle_is_refused(opcode: bytes) -> None:
    with pytest.raises(FormatError, match="memo index"):
        check_pickle(b"\x80\x02N" + opcode + b".")


@pytest.mark.parametrize(
    "opcodes", [b"]\x94]q\x01", b"NN\x86q\x00N\x94h\x00h\x00\x86\x94h\x02h\x02\x86\x94"]
)
def test_two_ways_to_number_the_memo_are_refused(opcodes: bytes) -> None:
    """What is fetched by a number would not be what was weighed under it."""
    with pytest.raises(FormatError, match="two ways"):
        check_pickle(b"\x80\x04" + opcodes + b".")


def test_references_may_not_repeat_a_heavy_value_beyond_all_measure() -> None:
    heavy = b"(" + b"N" * 4000 + b"tq\x00"
    check_pickle(b"\x80\x02" + heavy + b"h\x00" * 10 + b".")
    with pytest.raises(FormatError, match="repeats its content"):
        check_pickle(b"\x80\x02" + heavy + b"h\x00" * 4000 + b".")


@pytest.mark.parametrize("data", [b"", b"\x80\x02", b"N", b"t.", b"\x86.", b"u.", b"s.", b"R.", b"\xff.", b"X\xff\xff\xff\xff.", b"0.", b"\x94.", b"I1", b"g\n."])  # fmt: skip
def test_what_is_no_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        check_pickle(data)

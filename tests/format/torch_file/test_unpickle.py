"""A pickle is read as inert data, and a hostile one is refused before anything happens."""

from __future__ import annotations

import argparse
import collections
import datetime
import os
import pathlib
import pickle
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.dtypes import BY_TORCH
from intarsia.errors import FormatError, IntarsiaError, LimitError, UnsafeError
from intarsia.format.torch_file.inert import Array, Inert
from intarsia.format.torch_file.unpickle import load_inert

PROTOCOLS = range(6)
PLAIN = {
    "numbers": [0, -1, 255, 65536, 2**31, 2**70, 1.5, True, None, 1j],
    "text": ["", "ab", "é", b"", b"\x00\xff", bytearray(b"q")],
    "boxes": [(), (1,), (1, 2, 3, 4), {1, 2}, frozenset("x"), {"k": [{}]}],
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_arrive_as_they_were(protocol: int) -> None:
    assert load_inert(pickle.dumps(PLAIN, protocol), "here") == PLAIN


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_library_values_arrive_as_plain_ones(protocol: int) -> None:
    now = datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)
    said = {
        "ordered": collections.OrderedDict(a=1),
        "default": collections.defaultdict(list, {1: [2]}),
        "deque": collections.deque([1, 2]),
        "path": pathlib.PurePosixPath("/a/b"),
        "now": now,
        "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]),
        "device": torch.device("cuda", 1),
    }
    assert load_inert(pickle.dumps(said, protocol), "here") == {
        "ordered": {"a": 1},
        "default": {1: [2]},
        "deque": [1, 2],
        "path": "/a/b",
        "now": now,
        "dtype": BY_TORCH["bfloat16"],
        "size": (2, 3),
        "device": "cuda:1",
    }


@pytest.mark.parametrize("protocol", range(5))
def test_an_array_keeps_its_type_shape_and_bytes(protocol: int) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = load_inert(pickle.dumps(array, protocol), "here")
    assert isinstance(found, Array)
    assert (found.dtype, found.shape, found.data) == ("f4", (2, 3), array.tobytes())


def test_a_namespace_of_unknown_classes_is_readable() -> None:
    # GLOBAL megatron.core.enums.AttnBackend, called with 5, as the field `backend`.
    data = b"\x80\x02cargparse\nNamespace\n)\x81}(X\x07\x00\x00\x00backend"
    data += b"cmegatron.core.enums\nAttnBackend\nK\x05\x85RX\x01\x00\x00\x00nK\x03ub."
    found = load_inert(data, "here")
    assert isinstance(found, Inert)
    assert found.name == "argparse.Namespace"
    assert found.get("n") == 3
    assert found.get("backend").args == (5,)
    assert repr(found) == "argparse.Namespace(backend=megatron.core.enums.AttnBackend(...), n=3)"
    assert found.get("absent", "other") == "other"


def test_a_real_namespace_is_readable() -> None:
    space = argparse.Namespace(lr=0.1, kind=int, sizes=[1, 2])
    found = load_inert(pickle.dumps(space), "here")
    assert (found.get("lr"), found.get("sizes")) == (0.1, [1, 2])
    assert repr(found.get("kind")) == "builtins.int"


def test_a_repr_is_short_however_the_object_is_nested() -> None:
    # Each level holds the one below twice: written out, it would have 2**60 leaves.
    data = b"\x80\x02ctorch\nA\n" + b"q\x000" + b"I" + b"9" * 3000 + b"\n"
    data += b"q\x010" + b"h\x00h\x01\x85R"
    data += b"".join(b"q%c0h\x00(h%ch%ctR" % (i, i, i) for i in range(2, 62)) + b"."
    assert len(repr(load_inert(data, "here"))) < 200


def test_a_member_of_an_enumeration_is_read_as_python_3_11_0_to_3_11_3_pickle_it() -> None:
    found = load_inert(pickle.dumps(Runs(getattr, torch.nn.Module, "DOT_PRODUCT")), "here")
    assert repr(found) == "torch.nn.modules.module.Module('DOT_PRODUCT')"


class Runs:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def hostile(marker: Path) -> dict[str, bytes]:
    touch = f"touch {marker}"
    quoted = touch.encode()
    text = b"X" + len(quoted).to_bytes(4, "little") + quoted
    spelled = {
        f"os.system, protocol {p}": pickle.dumps(Runs(os.system, touch), p) for p in PROTOCOLS
    }
    spelled |= {
        "inside a dict": pickle.dumps({"w": [1, Runs(os.system, touch)]}),
        "exec": pickle.dumps(Runs(exec, f"open({str(marker)!r}, 'w')")),
        "eval": pickle.dumps(Runs(eval, f"open({str(marker)!r}, 'w')")),
        "open": pickle.dumps(Runs(open, str(marker), "w")),
        "getattr": pickle.dumps(Runs(getattr, "", "join")),
        "getattr of a date": pickle.dumps(Runs(getattr, datetime.date, "today")),
        "getattr of a list": pickle.dumps(Runs(getattr, list, "clear")),
        "getattr into code": pickle.dumps(Runs(getattr, torch.nn.Module, "load")),
        "import": pickle.dumps(Runs(__import__, "os")),
        "by GLOBAL": b"cos\nsystem\n(" + text + b"tR.",
        "by INST": b"(" + text + b"ios\nsystem\n.",
        "by OBJ": b"(cos\nsystem\n" + text + b"o.",
        "by STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text + b"\x85R.",
        "by NEWOBJ": b"\x80\x02csubprocess\nPopen\n" + text + b"\x85\x81.",
        "through torch": b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93" + text + b"\x85R.",
        "through a hub": b"ctorch.hub\nload\n(" + text + b"tR.",
        "through numpy": b"\x80\x04\x8c\x05numpy\x8c\x0dcore.os.popen\x93" + text + b"\x85R.",
        "Python 2": b"c__builtin__\neval\n(" + text + b"tR.",
        "partial": b"cfunctools\npartial\n(" + text + b"tR.",
        "operator": b"coperator\nattrgetter\n(" + text + b"tR.",
        "unknown module": b"cmodels.mine\nNet\n(" + text + b"tR.",
        "__main__": b"c__main__\nNet\n(" + text + b"tR.",
    }
    return spelled


@pytest.mark.parametrize("spelling", hostile(Path("unused")))
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(
    spelling: str, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    with pytest.raises(UnsafeError, match="nothing was run") as caught:
        load_inert(hostile(marker)[spelling], "some/file")
    assert "some/file" in str(caught.value)
    assert not marker.exists()


def test_the_attack_itself_works_without_protection(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    pickle.loads(hostile(marker)["by GLOBAL"])
    assert marker.exists()


@pytest.mark.parametrize(
    "data",
    {
        "nothing": b"",
        "no pickle": b"hello world",
        "truncated": pickle.dumps(PLAIN)[:-9],
        "a huge memo index": b"\x80\x02]r\xff\xff\xff\x7f.",
        "a huge memo index as text": b"]p4294967295\n.",
        "a lying text length": b"\x80\x04X\xff\xff\xff\x7fab.",
        "a lying bytearray length": b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00ab.",
        "a huge bytes object": b"cbuiltins\nbytes\n(J\xff\xff\xff\x7ftR.",
        "a huge range": b"cbuiltins\nlist\n(cbuiltins\nrange\n(J\xff\xff\xff\x7ftRtR.",
        "a key that cannot be hashed": b"}(]K\x01u.",
        "a storage beside": b"X\x01\x00\x00\x000Q.",
        "an extension code": b"\x80\x02\x82\x01.",
        "an empty stack": b"0.",
    }.items(),
    ids=lambda pair: pair[0],
)
def test_what_is_no_sound_pickle_is_a_format_error(data: tuple[str, bytes]) -> None:
    with pytest.raises(FormatError, match="at here"):
        load_inert(data[1], "here")


def test_a_pickle_that_was_cut_off_is_called_so() -> None:
    data = pickle.dumps({"a": [1, 2.0, "three"] * 40}, protocol=2)
    for length in (len(data) - 1, len(data) - 3):
        said = f"cannot be read (it has {length} bytes and no end: the rest was cut off) - at here"
        with pytest.raises(FormatError, match=re.escape(said)):
            load_inert(data[:length], "here")


def test_a_memo_index_is_refused_before_memory_is_taken_for_it() -> None:
    for data in (b"\x80\x02]r\xff\xff\xff\x00.", b"]p9999999\n."):
        with pytest.raises(FormatError, match="not a pickle from byte"):
            load_inert(data, "here")


def test_a_pickle_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(FormatError, match="at most 10"):
        load_inert(pickle.dumps(PLAIN), "here", limit_bytes=10)


def test_text_is_not_repeated_beyond_the_size_of_the_pickle() -> None:
    word = b"X" + (1000).to_bytes(4, "little") + b"a" * 1000 + b"q\x000"
    again = b"c_codecs\nencode\n(h\x00X\x06\x00\x00\x00latin1tR"
    with pytest.raises(FormatError, match="repeats"):
        load_inert(b"\x80\x02" + word + b"(" + again * 2000 + b"t.", "here")


@pytest.mark.parametrize(
    "target",
    [
        "ctorch\nbfloat16\n",
        "ctorch\nSize\n",
        "cmegatron\nA\n",
        "ctorch._utils\n_rebuild_tensor_v2\n",
    ],
)
def test_no_pickle_changes_what_the_next_one_sees(target: str) -> None:
    state = pickle.dumps(("LIE", "LIE", 99, True), 2)[2:-1]
    slots = pickle.dumps((None, {"_function": 1, "itemsize": 99, "__module__": "os"}), 2)[2:-1]
    for said in (state, slots):
        with suppress(FormatError):
            load_inert(b"\x80\x02" + target.encode() + said + b"b.", "here")
    assert load_inert(pickle.dumps(torch.bfloat16, 2), "here") == BY_TORCH["bfloat16"]
    assert BY_TORCH["bfloat16"].itemsize == 2
    assert load_inert(pickle.dumps(torch.Size([4]), 2), "here") == (4,)
    assert load_inert(b"\x80\x02cmegatron\nA\n)R.", "here").name == "megatron.A"


SEEDS = [pickle.dumps(PLAIN, p) for p in PROTOCOLS] + [
    pickle.dumps([torch.Size([1]), torch.float32, np.arange(3), argparse.Namespace(a=1)], p)
    for p in (0, 2, 4)
]


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(SEEDS), st.data())
def test_a_damaged_pickle_raises_nothing_but_our_errors(seed: bytes, data: st.DataObject) -> None:
    broken = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    with suppress(IntarsiaError):
        repr(load_inert(bytes(broken), "here"))


def test_too_little_memory_is_no_fault_of_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(data: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr("intarsia.format.torch_file.unpickle.check_pickle", full)
    with pytest.raises(LimitError, match="not enough memory to read a pickle") as raised:
        load_inert(pickle.dumps({"a": 1}), "common.pt")
    assert not raised.value.is_fault

"""A tensor of an opened checkpoint is an array that is read when indexed, or refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

import intarsia
from intarsia.opened.lazy_tensor import Tensor
from tests.checkpoints import bits, matrix, python, random_tensor, write_hf
from tests.versions import since

W = torch.arange(60, dtype=torch.float32).reshape(5, 4, 3)
NATIVE = {"bfloat16"} | {f"float8_{k}" for k in ("e4m3fn", "e5m2", "e8m0fnu", "e4m3fnuz", "e5m2fnuz")}  # fmt: skip
"""The element types that NumPy lacks."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[intarsia.Checkpoint]:
    tensors = matrix() | {"w": W, "half": random_tensor((3, 2), torch.bfloat16)}
    folder = write_hf(tmp_path_factory.mktemp("lazy") / "hf", tensors)
    with intarsia.open(folder) as checkpoint:
        yield checkpoint


@pytest.fixture(scope="module")
def lazy(opened: intarsia.Checkpoint) -> Tensor:
    return opened["w"]


def test_it_has_the_measures_of_an_array(lazy: Tensor) -> None:
    array = W.numpy()
    assert (lazy.shape, lazy.ndim, lazy.size, lazy.nbytes) == (
        array.shape, array.ndim, array.size, array.nbytes,
    )  # fmt: skip
    assert lazy.numel() == W.numel()
    assert lazy.dtype == W.dtype
    assert len(lazy) == len(array)


def test_it_is_read_by_the_names_of_safe_open(opened: intarsia.Checkpoint, tmp_path: Path) -> None:
    """A script that reads with safetensors reads with this."""
    tensors = matrix() | {"w": W}
    save_file(tensors, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as peer:
        assert set(peer.keys()) <= set(opened.keys())
        for name in peer.keys():  # noqa: SIM118
            assert bits(opened.get_tensor(name)) == bits(peer.get_tensor(name)), name
            mine, theirs = opened.get_slice(name), peer.get_slice(name)
            assert mine.get_shape() == theirs.get_shape()
            assert mine.get_dtype() == theirs.get_dtype()
        part = peer.get_slice("w")[1:4, 2]
        assert torch.equal(opened.get_slice("w")[1:4, 2], part)
    with pytest.raises(KeyError, match=r"^'absent' is not in") as found:
        opened.get_slice("absent")
    assert isinstance(found.value, intarsia.IntarsiaError)
    assert opened.get("absent") is None


def test_its_measures_cost_no_torch(tmp_path: Path) -> None:
    save_file({"w": W}, tmp_path / "model.safetensors")
    code = (
        f"import sys, intarsia, numpy as np; x = intarsia.open({str(tmp_path)!r})['w'];"
        "print(x.shape, x.ndim, x.size, x.numel(), x.nbytes, len(x), x.get_dtype(), repr(x), np.asarray(x).sum(),"
        "'torch' in sys.modules)"
    )
    told = "(5, 4, 3) 3 60 60 240 5 F32 <Tensor w [5, 4, 3] F32> 1770.0 False\n"
    assert python("-c", code).stdout == told


def test_numpy_takes_it_for_the_array_that_it_is(lazy: Tensor) -> None:
    array = np.asarray(lazy)
    assert array.dtype == np.float32
    assert np.array_equal(array, W.numpy())
    assert np.array(lazy, dtype=np.float64).dtype == np.float64
    assert np.array_equal(lazy, lazy)
    assert np.array_equal(np.add(lazy, 1), W.numpy() + 1)
    array[0] = -1
    assert np.array_equal(lazy, W.numpy()), "each array is memory of its own"


@since("numpy", "2.0")
def test_an_array_of_the_same_memory_is_refused(lazy: Tensor) -> None:
    with pytest.raises(ValueError, match="is always a copy"):
        np.asarray(lazy, copy=False)


def test_every_element_type_is_an_array_or_refused(opened: intarsia.Checkpoint) -> None:
    for name, tensor in matrix().items():
        if name.partition(".")[0] in NATIVE:
            with pytest.raises(intarsia.UsageError, match=r"NumPy does not have[\s\S]*\.float\(\)"):
                np.asarray(opened[name])
        else:
            array = np.asarray(opened[name])
            assert array.shape == tensor.shape
            assert array.tobytes() == bits(tensor), name


@pytest.mark.parametrize("take", [torch.as_tensor, torch.tensor, torch.asarray, torch.from_dlpack])
def test_torch_takes_it_for_the_array_that_it_is(
    opened: intarsia.Checkpoint, take: Callable[[Tensor], torch.Tensor]
) -> None:
    for name, tensor in (matrix() | {"w": W}).items():
        found = take(opened[name])
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
        assert bits(found) == bits(tensor), name


def test_it_is_gone_through_row_by_row(opened: intarsia.Checkpoint, lazy: Tensor) -> None:
    assert torch.equal(torch.stack(list(lazy)), W)
    scalar = opened["float32.scalar"]
    for call in (lambda: len(scalar), lambda: list(scalar)):
        with pytest.raises(TypeError, match="no axes"):
            call()


bound = st.one_of(st.none(), st.integers(-9, 9))
step = st.one_of(st.none(), st.integers(-4, 4).filter(bool))
axis = st.one_of(st.builds(slice, bound, bound, step), st.integers(-3, 2), st.integers(0, 2).map(np.int32))  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(axis, max_size=3), st.integers(0, 3), st.booleans())
def test_an_index_gives_what_numpy_gives(lazy: Tensor, items: list, at: int, dots: bool) -> None:
    """Steps, negative steps and slices that reach beyond the tensor as well."""
    index = (*items[:at], ..., *items[at:]) if dots else tuple(items)
    found, want = lazy[index], W.numpy()[index]
    assert tuple(found.shape) == want.shape
    assert np.array_equal(found.numpy(), want)


REFUSED: dict[str, Callable[[Tensor], object]] = {
    "a list": lambda x: x[[0, 2]],
    "a mask": lambda x: x[np.ones(5, bool)],
    "a mask of torch": lambda x: x[W > 3],
    "an array": lambda x: x[np.array([0])],
    "a tensor": lambda x: x[torch.tensor(1)],
    "a new axis": lambda x: x[None],
    "true": lambda x: x[True],
    "true of NumPy": lambda x: x[np.bool_(True)],
    "a fraction": lambda x: x[1.5],
    "a text": lambda x: x["0"],
    "two ellipses": lambda x: x[..., ...],
    "too many": lambda x: x[0, 0, 0, 0],
    "equal": lambda x: x == x,
    "not equal": lambda x: x != W,
    "equal from torch": lambda x: x == W,
    "equal on the right of torch": lambda x: W == x,  # noqa: SIM300
    "equal on the right of NumPy": lambda x: W.numpy() == x,
    "equal to nothing": lambda x: x == None,  # noqa: E711
    "less": lambda x: x < 3,
    "truth": lambda x: bool(x),
    "if": lambda x: 1 if x else 2,
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_an_array_does_and_this_does_not_is_refused(lazy: Tensor, call: Callable[[Tensor], object]) -> None:  # fmt: skip
    with pytest.raises(intarsia.UsageError, match="hint: "):
        call(lazy)


def test_an_index_beyond_the_tensor_and_a_step_of_zero_are_errors_as_numpys(lazy: Tensor) -> None:
    for index in (5, -6, (0, 4), (..., 3)):
        with pytest.raises(IndexError, match="is outside axis") as found:
            lazy[index]
        assert isinstance(found.value, intarsia.IntarsiaError)
    with pytest.raises(ValueError, match="zero"):
        lazy[::0]


def test_it_is_found_again_by_identity(opened: intarsia.Checkpoint, lazy: Tensor) -> None:
    assert {lazy: 1}[lazy] == 1
    with pytest.raises(intarsia.UsageError):
        assert opened == dict(opened)


@pytest.mark.parametrize(
    "dtype",
    [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64],
)  # fmt: skip
@pytest.mark.parametrize("index", [np.s_[::-1], np.s_[:, ::-2], np.s_[-2::-2, 1], np.s_[::2, ::-1]])
def test_steps_back_are_read_of_every_element_type(
    tmp_path: Path, dtype: torch.dtype, index: Any
) -> None:
    places = np.arange(30).reshape(5, 6)
    raw = torch.randint(0, 2, (30 * dtype.itemsize,), dtype=torch.uint8)
    save_file({"w": raw.view(dtype).reshape(5, 6)}, tmp_path / "model.safetensors")
    found = intarsia.open(tmp_path)["w"][index]
    wanted = raw.reshape(30, -1)[np.ascontiguousarray(places[index]).reshape(-1)]
    assert found.dtype == dtype
    assert tuple(found.shape) == places[index].shape
    assert torch.equal(found.contiguous().reshape(-1).view(torch.uint8), wanted.reshape(-1))

"""`diff` is exact whatever the numbers are, its order is total, and it lists what it cannot measure."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import intarsia
from intarsia.checking.pair.change import Changes, ShapesDiffer, TensorChange, distances
from intarsia.dtypes import BY_NAME
from intarsia.value.bits import bits_dtype
from tests.checkpoints import intarsia as cli
from tests.checkpoints import write_hf

pytestmark = pytest.mark.filterwarnings("error")
NAN, INF = math.nan, math.inf


def between(tmp_path: Path, a: torch.Tensor, b: torch.Tensor) -> TensorChange:
    left = write_hf(tmp_path / "a", {"w": a})
    right = write_hf(tmp_path / "b", {"w": b})
    (found,) = intarsia.diff(left, right)
    return found


INTEGERS = st.lists(
    st.tuples(*[st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)] * 2), min_size=1, max_size=9
)


@settings(max_examples=40)
@given(pairs=INTEGERS)
def test_integers_are_exact(tmp_path_factory: pytest.TempPathFactory, pairs) -> None:
    a, b = (torch.tensor(side, dtype=torch.int64) for side in zip(*pairs, strict=True))
    found = between(tmp_path_factory.mktemp("x"), a, b)
    assert found.max_abs == max(abs(p - q) for p, q in pairs)
    exact = math.sqrt(sum(Fraction(p - q) ** 2 for p, q in pairs) / len(pairs))
    assert found.rms == pytest.approx(exact)


@pytest.mark.parametrize(
    ("a", "b", "most"),
    [
        (torch.tensor([2**53], dtype=torch.int64), torch.tensor([2**53 + 1], dtype=torch.int64), 1),
        (torch.tensor([2**64 - 1], dtype=torch.uint64), torch.tensor([0], dtype=torch.uint64), 2**64 - 1),
        (torch.tensor([-1], dtype=torch.int64), torch.tensor([2**64 - 1], dtype=torch.uint64), 2**64),
        (torch.tensor([2**53 + 1], dtype=torch.int64), torch.tensor([2.0**53], dtype=torch.float64), 1),
        (torch.tensor([7, 2**62], dtype=torch.int64), torch.tensor([9, 2**62], dtype=torch.float64), 2),
        (torch.tensor([True, False]), torch.tensor([False, False]), 1),
    ],
)  # fmt: skip
def test_large_integers_of_any_types_are_exact(tmp_path: Path, a, b, most: int) -> None:
    found = between(tmp_path, a, b)
    assert found.max_abs == most
    assert found.as_json()["max_abs"] == most


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e200, 1e307])
def test_doubles_of_any_size_neither_overflow_nor_vanish(tmp_path: Path, scale: float) -> None:
    a = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64) * scale
    b = torch.tensor([1.0, 2.5, -3.0], dtype=torch.float64) * scale
    found = between(tmp_path, a, b)
    assert found.max_abs == pytest.approx(0.5 * scale)
    assert found.rms == pytest.approx(0.5 / math.sqrt(3) * scale)
    assert found.relative == pytest.approx(0.5 / math.sqrt(14))
    assert found.cosine == pytest.approx(15 / math.sqrt(14 * 16.25))


def test_what_did_not_move_has_a_cosine_of_one(tmp_path: Path) -> None:
    same = torch.tensor([1.0, 1.0])
    assert between(tmp_path, same, same.clone()).cosine == 1


def test_windows_of_unlike_sizes_add_up(tmp_path: Path, monkeypatch) -> None:
    from intarsia.run.budget import Budget

    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: 64))
    a = torch.tensor([1e-200, 1e200, 1.0, 1e100] * 40, dtype=torch.float64)
    b = a * torch.tensor([1.0, 1.5] * 80, dtype=torch.float64)
    found = between(tmp_path, a, b)
    assert found.relative == pytest.approx(0.5)
    assert found.cosine == pytest.approx(1)


@pytest.mark.parametrize(
    ("a", "b", "most"),
    [
        ([1.0, INF], [1.5, INF], 0.5),
        ([1.0, NAN], [1.5, NAN], 0.5),
        ([1.0, -INF], [1.0, INF], INF),
        ([1.0, 2.0], [1.0, INF], INF),
        ([1.0, NAN], [1.0, 2.0], NAN),
        ([INF, NAN], [1.0, 2.0], NAN),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_infinities_and_nan_move_only_if_they_do(tmp_path: Path, a, b, most, dtype) -> None:
    if dtype == torch.complex64:
        found = between(tmp_path, *(torch.complex(torch.tensor(x), torch.zeros(2)) for x in (a, b)))
    else:
        found = between(tmp_path, torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype))
    assert found.max_abs == pytest.approx(most, nan_ok=True)
    assert sum(found.not_finite) == sum(not math.isfinite(x) for x in [*a, *b])
    if math.isfinite(most):
        assert found.relative == pytest.approx(0.5)
    else:
        assert found.as_json()["max_abs"] == str(most)


def test_the_order_is_total_and_nothing_hides(tmp_path: Path) -> None:
    a = {f"t{k}": torch.tensor([1.0, 2.0]) for k in range(12)}
    b = {name: x.clone() for name, x in a.items()}
    b["t3"][0], b["t7"][1], b["t5"][0], b["t9"][0] = NAN, INF, 9.0, 5.0
    names = list(b)
    orders = set()
    for seed in range(3):
        random.Random(seed).shuffle(names)
        left = write_hf(tmp_path / f"a{seed}", {n: a[n] for n in names})
        right = write_hf(tmp_path / f"b{seed}", {n: b[n] for n in names})
        orders.add(tuple(change.tensor for change in intarsia.diff(left, right)))
    (order,) = orders
    assert order[:4] == ("t3", "t7", "t5", "t9")
    assert sorted(order) == sorted(a)


def test_what_cannot_be_measured_is_listed(tmp_path: Path) -> None:
    a = write_hf(
        tmp_path / "a", {"both": torch.ones(2), "left": torch.ones(2), "unlike": torch.ones(2, 6)}
    )
    b = write_hf(
        tmp_path / "b", {"both": torch.ones(2), "right": torch.ones(2), "unlike": torch.ones(6, 2)}
    )
    answer = cli("diff", a, b)
    assert answer.status == 0
    assert "unlike shapes: unlike [2, 6] in A, [6, 2] in B" in answer.out
    assert "only in A: left" in answer.out
    assert "only in B: right" in answer.out
    document = cli("diff", a, b, "--json").json
    assert document["unlike"] == [{"tensor": "unlike", "a": [2, 6], "b": [6, 2]}]
    assert (document["only_in_a"], document["only_in_b"]) == (["left"], ["right"])
    assert [row["tensor"] for row in document["tensors"]] == ["both"]


def bits(values: list[object], dtype: str, numpy: str) -> np.ndarray:
    return np.array(values, numpy).view(bits_dtype(BY_NAME[dtype]))


@pytest.mark.parametrize(
    ("a", "x", "b", "y", "gaps", "most"),
    [
        (("F32", "f4"), [1.0, NAN, INF], ("F32", "f4"), [3.5, NAN, INF], [2.5, 0, 0], 2.5),
        (("I32", "i4"), [7, -7], ("I32", "i4"), [7, 7], [0, 14], 14),
        (("I64", "i8"), [2**62], ("I64", "i8"), [2**62 + 1], [1], 1),
        (("I64", "i8"), [5, -9], ("I64", "i8"), [-3, 9], [8, 18], 18),
        (("I64", "i8"), [-(2**63)], ("I64", "i8"), [2**63 - 1], [2.0**64], 2**64 - 1),
        (("I64", "i8"), [2**53 + 1], ("F64", "f8"), [2.0**53], [1], 1),
        (("C64", "c8"), [1 + 1j], ("C64", "c8"), [4 + 5j], [3, 4], 5.0),
        (("F4", "u1"), [0x71], ("F4", "u1"), [0x9A], [1.5, 6.5], 6.5),
    ],
)
def test_distances_of_any_types_are_those_of_the_numbers(a, x, b, y, gaps, most) -> None:
    with np.errstate(invalid="ignore"):
        u, v, gap, found = distances(bits(x, *a), bits(y, *b), BY_NAME[a[0]], BY_NAME[b[0]])
    assert np.abs(gap).tolist() == gaps
    assert found == most
    assert type(found) is type(most)
    assert len(u) == len(v) == len(gap)


def test_numbers_that_share_a_byte_are_measured_one_by_one(tmp_path: Path) -> None:
    four = torch.float4_e2m1fn_x2
    a, b = (torch.tensor([[x, 0x11]], dtype=torch.uint8).view(four) for x in (0x75, 0x77))
    found = between(tmp_path, a, b)  # 3 and 6 in A, 6 and 6 in B, beside halves
    assert (found.max_abs, found.rms) == (3, 1.5)


def test_changes_are_a_sequence_that_goes_to_json() -> None:
    far = TensorChange("w", 4, INF, INF, INF, NAN, (0, 1))
    found = Changes((far,), unlike=(ShapesDiffer("v", (2, 6), (6, 2)),), only_in_a=("u",))
    assert (len(found), found[0], list(found)) == (1, far, [far])
    document = found.as_json()
    assert document["unlike"] == [{"tensor": "v", "a": [2, 6], "b": [6, 2]}]
    assert document["tensors"][0]["max_abs"] == "inf"
    assert document["tensors"][0]["cosine"] == "nan"
    assert document["only_in_a"] == ["u"]


def test_the_furthest_comes_first_and_names_break_a_tie() -> None:
    def change(name: str, most: float, relative: float) -> TensorChange:
        return TensorChange(name, 1, most, 0.0, relative, 1.0)

    order = [change("n", NAN, NAN), change("i", INF, INF), change("far", 1.0, 2.0),
             change("a", 3.0, 1.0), change("b", 3.0, 1.0), change("c", 2.0, 1.0)]  # fmt: skip
    shuffled = [order[k] for k in (3, 5, 0, 4, 2, 1)]
    assert sorted(shuffled, key=lambda c: c.rank) == order

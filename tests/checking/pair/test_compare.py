"""Verify finds every differing bit and says which element; diff agrees with NumPy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import intarsia
from intarsia.run.budget import Budget
from tests.checkpoints import (
    DTYPES,
    llama_config,
    model,
    normal_tensor,
    qwen3_config,
    random_tensor,
    write_hf,
)

CONFIG = llama_config()


def flipped(tensor: torch.Tensor, bit: int) -> torch.Tensor:
    """A copy with one bit of its bytes changed."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).clone()
    raw[bit // 8] ^= 1 << bit % 8
    return raw.view(tensor.dtype).reshape(tensor.shape)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint, and the same on a mesh."""
    root = tmp_path_factory.mktemp("pair")
    src = write_hf(root / "hf", model(CONFIG), CONFIG)
    intarsia.convert(src, root / "dcp", to="dcp", mesh="tp=2,fsdp=3")
    return src, root / "dcp"


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_one_flipped_bit_anywhere_is_found_and_its_element_named(pair, tmp_path_factory, data):
    _, sharded = pair
    tensors = model(CONFIG)
    name = data.draw(st.sampled_from(sorted(tensors)))
    bit = data.draw(st.integers(0, tensors[name].numel() * 16 - 1))
    tensors[name] = flipped(tensors[name], bit)
    other = write_hf(tmp_path_factory.mktemp("flipped") / "hf", tensors, CONFIG)
    found = intarsia.verify(sharded, other)
    assert not found
    (difference,) = found.different
    assert difference.tensor == name
    assert difference.elements == 1
    assert difference.first == tuple(
        int(i) for i in np.unravel_index(bit // 16, tensors[name].shape)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.one_in(8)
def test_a_flipped_bit_is_found_in_every_element_type(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = random_tensor((5, 7), dtype)
    bits = 8 * tensor.element_size()
    a, b = (write_hf(tmp_path / name, {"w": tensor}) for name in "ab")
    assert intarsia.verify(a, b)
    whole = (b / "model.safetensors").read_bytes()
    for bit in (0,) if dtype == torch.bool else range(bits):
        damaged = bytearray(whole)
        damaged[len(whole) - 35 * bits // 8 + 17 * bits // 8 + bit // 8] ^= 1 << bit % 8
        (b / "model.safetensors").write_bytes(damaged)
        (difference,) = intarsia.verify(a, b).different
        assert difference.elements == 1
        assert difference.first == (2, 3)


@pytest.mark.filterwarnings("error")
def test_the_payload_of_a_nan_counts_and_its_numbers_are_no_warning(tmp_path: Path) -> None:
    quiet = torch.tensor([0x7FC00000, 0x7FC00001, 0x7F800001, 0x7F800000], dtype=torch.int32)
    other = torch.tensor([0x7FC00000, 0x7FC00002, 0x7F800001, 0x7F800000], dtype=torch.int32)
    a = write_hf(tmp_path / "a", {"w": quiet.view(torch.float32)})
    b = write_hf(tmp_path / "b", {"w": other.view(torch.float32)})
    assert intarsia.verify(a, a)
    (difference,) = intarsia.verify(a, b).different
    assert difference.first == (1,)
    assert math.isnan(difference.max_abs)
    assert difference.as_json()["max_abs"] == "nan"


def test_minus_zero_is_not_zero(tmp_path: Path) -> None:
    a = write_hf(tmp_path / "a", {"w": torch.tensor([0.0, 1.0])})
    b = write_hf(tmp_path / "b", {"w": torch.tensor([-0.0, 1.0])})
    (difference,) = intarsia.verify(a, b).different
    assert difference.first == (0,)
    assert difference.max_abs == 0.0


@pytest.mark.parametrize("window", [64, 1 << 20])
def test_the_count_the_first_and_the_largest_difference_are_numpys(
    tmp_path: Path, monkeypatch, window: int
) -> None:
    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: window))
    x = normal_tensor((40, 30), torch.float32, 1)
    y = x.clone()
    for k in (77, 500, 501, 1111):
        y.view(-1)[k] += k / 100
    a, b = write_hf(tmp_path / "a", {"w": x}), write_hf(tmp_path / "b", {"w": y})
    (difference,) = intarsia.verify(a, b).different
    assert difference.elements == 4
    assert difference.first == (2, 17)
    assert difference.max_abs == pytest.approx(float((x.double() - y.double()).abs().max()))


def test_tensors_on_one_side_only_are_named(tmp_path: Path) -> None:
    a = write_hf(tmp_path / "a", {"both": torch.ones(2), "left": torch.ones(3)})
    b = write_hf(tmp_path / "b", {"both": torch.ones(2), "right": torch.ones(3)})
    found = intarsia.verify(a, b)
    assert not found.equal
    assert found.only_in_a == ("left",)
    assert found.only_in_b == ("right",)
    assert found.compared == 1
    assert not found.different
    assert [f.kind for f in found.faults] == ["tensors-missing", "tensors-missing"]
    fewer = write_hf(tmp_path / "fewer", {"both": torch.ones(2)})
    for pair in ((a, fewer), (fewer, a)):
        assert [fault.kind for fault in intarsia.verify(*pair).faults] == ["tensors-missing"]


def test_shapes_that_differ_are_told(tmp_path: Path) -> None:
    a = write_hf(tmp_path / "a", {"w": normal_tensor((2, 6), torch.float32, 1)})
    b = write_hf(tmp_path / "b", {"w": normal_tensor((6, 2), torch.float32, 2)})
    (difference,) = intarsia.verify(a, b).different
    assert difference.diagnosis == "shape [2, 6] in A, [6, 2] in B"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x: x.bfloat16(), "the narrower is the wider one rounded"),
        (lambda x: x.bfloat16() * 1.5, "the numbers differ beyond rounding"),
        (lambda x: x.double(), "the numbers are equal"),
    ],
    ids=["rounded", "scaled", "widened"],
)
def test_other_element_types_are_a_difference_with_a_diagnosis(
    tmp_path: Path, change, told: str
) -> None:
    x = normal_tensor((9, 5), torch.float32)
    a, b = write_hf(tmp_path / "a", {"w": x}), write_hf(tmp_path / "b", {"w": change(x)})
    for left, right in ((a, b), (b, a)):
        found = intarsia.verify(left, right)
        assert not found.equal
        assert told in found.different[0].diagnosis


def test_equal_numbers_of_another_type_are_still_a_difference(tmp_path: Path) -> None:
    a = write_hf(tmp_path / "a", {"w": torch.arange(4)})
    b = write_hf(tmp_path / "b", {"w": torch.arange(4, dtype=torch.int32)})
    (difference,) = intarsia.verify(a, b).different
    assert "I64 in A, I32 in B" in difference.diagnosis


def test_a_tied_head_is_held_against_the_embedding(tmp_path: Path) -> None:
    config = qwen3_config(tie_word_embeddings=True)
    once = model(config)
    head = flipped(once["model.embed_tokens.weight"], 555)
    a = write_hf(tmp_path / "a", once, config)
    b = write_hf(tmp_path / "b", once | {"lm_head.weight": head}, config)
    for left, right in ((a, b), (b, a)):
        (difference,) = intarsia.verify(left, right).different
        assert difference.elements == 1
        assert difference.first == divmod(555 // 16, 20)


def test_empty_and_scalar_tensors_compare(tmp_path: Path) -> None:
    tensors = {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5), "flag": torch.tensor(True)}
    a = write_hf(tmp_path / "a", tensors)
    b = write_hf(tmp_path / "b", tensors | {"scalar": torch.tensor(3.0)})
    assert intarsia.verify(a, a)
    (difference,) = intarsia.verify(a, b).different
    assert difference.first == ()
    assert difference.max_abs == 0.5


@pytest.mark.parametrize("window", [64, 1 << 20])
def test_diff_measures_what_numpy_measures(tmp_path: Path, monkeypatch, window: int) -> None:
    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: window))
    x, y = (normal_tensor((33, 21), torch.bfloat16, seed) for seed in (1, 2))
    a = write_hf(tmp_path / "a", {"w": x, "same": x.clone(), "empty": torch.zeros(0)})
    b = write_hf(tmp_path / "b", {"w": y, "same": x.clone(), "empty": torch.zeros(0)})
    found = {change.tensor: change for change in intarsia.diff(a, b)}
    u, v = x.double().numpy().reshape(-1), y.double().numpy().reshape(-1)
    change = found["w"]
    assert change.max_abs == np.abs(v - u).max()
    assert change.rms == pytest.approx(np.sqrt(((v - u) ** 2).mean()))
    assert change.relative == pytest.approx(np.linalg.norm(v - u) / np.linalg.norm(u))
    assert change.cosine == pytest.approx(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
    same = found["same"]
    assert (same.max_abs, same.rms, same.relative) == (0, 0, 0)
    assert same.cosine == pytest.approx(1)
    assert found["empty"].as_json()["max_abs"] == 0


def test_complex_elements_differ_by_their_distance(tmp_path: Path) -> None:
    a = write_hf(tmp_path / "a", {"w": torch.tensor([3 + 4j, 1 + 0j])})
    b = write_hf(tmp_path / "b", {"w": torch.tensor([4 + 3j, 1 + 0j])})
    (difference,) = intarsia.verify(a, b).different
    assert difference.max_abs == pytest.approx(math.sqrt(2))
    (change,) = intarsia.diff(a, b)
    assert change.max_abs == pytest.approx(math.sqrt(2))
    assert change.rms == pytest.approx(1.0)


@pytest.mark.filterwarnings("error")
def test_infinities_and_nans_that_stay_have_not_moved_and_are_counted(tmp_path: Path) -> None:
    x = torch.tensor([math.inf, 1.0, math.nan])
    a = write_hf(tmp_path / "a", {"w": x})
    (change,) = intarsia.diff(a, a)
    assert (change.max_abs, change.rms, change.relative, change.cosine) == (0, 0, 0, 1)
    assert change.not_finite == (2, 2)


def test_the_comparison_goes_to_json(pair) -> None:
    import json

    src, sharded = pair
    document = json.loads(json.dumps(intarsia.verify(src, sharded).as_json()))
    assert document["equal"] is True
    assert document["compared"] == len(model(CONFIG))
    assert {"only_in_a", "only_in_b", "different", "faults"} <= document.keys()


def test_progress_goes_on_while_differences_are_explained(tmp_path: Path) -> None:
    config = llama_config()
    tensors = model(config)
    a = write_hf(tmp_path / "a", tensors, config)
    for name in list(tensors)[:4]:
        tensors[name] = tensors[name].flip(0).contiguous()
    b = write_hf(tmp_path / "b", tensors, config)
    told: list[tuple[int, int]] = []
    report = intarsia.verify(a, b, progress=lambda done, total: told.append((done, total)))
    whole = sum(x.numel() * x.element_size() for x in tensors.values())
    assert len(report.different) == 4
    assert told[-1][0] == told[-1][1] > whole
    assert sorted(told) == told


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64])
def test_the_largest_distance_of_integers_is_exact(tmp_path: Path, dtype: torch.dtype) -> None:
    x = torch.tensor([2**62, 5, 2**53 + 1], dtype=torch.int64)
    y = torch.tensor([1, 5, 2**53], dtype=torch.int64)
    a = write_hf(tmp_path / "a", {"steps": x.view(dtype)})
    b = write_hf(tmp_path / "b", {"steps": y.view(dtype)})
    (difference,) = intarsia.verify(a, b).different
    assert difference.max_abs == difference.as_json()["max_abs"] == 2**62 - 1
    assert difference.gap == f"{2**62 - 1:,}"

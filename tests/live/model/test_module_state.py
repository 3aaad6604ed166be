"""What a load fills is what the module has: its memory, or what its `load_state_dict` takes; never a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import intarsia
from intarsia.errors import CoverageError, LayoutError, UsageError
from intarsia.live.model.module_state import equal_bytes, of_numbers


class Scaled(nn.Linear):
    """Keeps its weight scaled, and hands it out in plain numbers."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight.detach() * 4

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"] / 4
        super()._load_from_state_dict(state, prefix, *rest)


class Deaf(nn.Linear):
    """Hands out copies, and takes nothing back."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight.detach().clone()
        destination[f"{prefix}bias"] = self.bias.detach().clone()

    def _load_from_state_dict(self, *given: Any) -> None:
        pass


class Refusing(Deaf):
    def _load_from_state_dict(self, *given: Any) -> None:
        raise ValueError("sealed")


class FourBits(nn.Module):
    """As bitsandbytes has it: the weight itself keeps scales, in which `load_state_dict` takes no part, and says its shape."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randint(256, (n_in, n_out), dtype=torch.uint8), False)
        self.weight.factor = torch.rand(n_out)  # type: ignore[attr-defined]
        self.weight.offset = 0.0  # type: ignore[attr-defined]
        self.adapter = nn.Linear(n_in, n_out)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight.factor"] = self.weight.factor
        destination[f"{prefix}weight.said.packed"] = torch.tensor([self.weight.offset])


class Secretive(nn.Module):
    """Leaves a parameter out of its state dict, as wrappers do that save adapters alone."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 2)
        self.adapter = nn.Linear(3, 2)
        self.register_state_dict_post_hook(self._adapter_alone)

    @staticmethod
    def _adapter_alone(module: Any, state: Any, prefix: str, meta: Any) -> None:
        for key in [key for key in state if ".adapter" not in f".{key}"]:
            del state[key]


def model(kind: type[nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 3), kind(3, 2))


def test_a_module_that_hands_out_copies_is_filled_by_its_own_load(tmp_path: Path) -> None:
    first, other = model(Scaled, 1), model(Scaled, 2)
    intarsia.save(tmp_path / "ck", first)
    report = intarsia.load(tmp_path / "ck", into=other)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True)
    )
    assert report.complete
    assert len(report.filled) == 4


def test_what_a_parameter_keeps_beside_its_elements_is_filled_in_place(tmp_path: Path) -> None:
    saved, other = model(FourBits, 0), model(FourBits, 1)
    intarsia.save(tmp_path / "saved", saved)
    assert intarsia.load(tmp_path / "saved", into=other).complete
    for key, x in saved.state_dict().items():
        assert torch.equal(x, other.state_dict()[key]), key


def test_what_a_parameter_keeps_and_hands_out_as_a_copy_must_be_equal(tmp_path: Path) -> None:
    saved, other = model(FourBits, 0), model(FourBits, 1)
    saved.get_submodule("1").weight.offset = 0.5  # type: ignore[union-attr]
    intarsia.save(tmp_path / "saved", saved)
    with pytest.raises(CoverageError, match=r"1 tensors differ .*: 1\.weight\.said\.packed"):
        intarsia.load(tmp_path / "saved", into=other)


@pytest.mark.parametrize(
    ("kind", "told"), [(Deaf, "1.bias, 1.weight|1.weight, 1.bias"), (Refusing, "sealed")]
)
def test_a_module_that_takes_nothing_back_is_refused(
    tmp_path: Path, kind: type[nn.Module], told: str
) -> None:
    intarsia.save(tmp_path / "ck", model(kind, 1))
    with pytest.raises(CoverageError, match=told):
        intarsia.load(tmp_path / "ck", into=model(kind, 2))


def test_views_of_a_parameter_under_other_names_are_its_own_memory(tmp_path: Path) -> None:
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Parameter(torch.randn(4, 3))

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination[f"{prefix}q"], destination[f"{prefix}k"] = self.both.detach().chunk(2)

    first, other = Fused(), Fused()
    intarsia.save(tmp_path / "ck", first)
    assert intarsia.load(tmp_path / "ck", into=other).complete
    assert torch.equal(first.both, other.both)


def test_a_parameter_that_is_not_handed_out_is_refused_or_reported(tmp_path: Path) -> None:
    module = Secretive()
    with pytest.raises(UsageError, match=r"2 tensors of the module are not in its state_dict"):
        intarsia.save(tmp_path / "ck", module)
    intarsia.save(tmp_path / "ck", module.state_dict())
    with pytest.raises(CoverageError, match=r"base\.bias, base\.weight.*does not return it"):
        intarsia.load(tmp_path / "ck", into=module)
    report = intarsia.load(tmp_path / "ck", into=module, strict=False)
    assert not report.complete
    assert [*report.kept] == ["base.bias", "base.weight"]


def test_a_parameter_that_is_not_handed_out_is_not_left_without_numbers(tmp_path: Path) -> None:
    intarsia.save(tmp_path / "ck", Secretive().state_dict())
    with torch.device("meta"):
        module = Secretive()
    with pytest.raises(CoverageError, match=r"2 tensors .* on `meta`.*base\.bias, base\.weight"):
        intarsia.load(tmp_path / "ck", into=module, strict=False)


def test_a_buffer_that_would_stay_on_meta_is_refused_or_reported(tmp_path: Path) -> None:
    class Rotary(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("angles", torch.ones(2), persistent=False)

    intarsia.save(tmp_path / "ck", Rotary())
    with torch.device("meta"):
        module = Rotary()
    with pytest.raises(CoverageError, match=r"angles; .*on `meta`[\s\S]*build them on a device"):
        intarsia.load(tmp_path / "ck", into=module)
    report = intarsia.load(tmp_path / "ck", into=module, strict=False)
    assert not report.complete
    assert "on `meta`" in report.kept["angles"]
    assert not module.weight.is_meta


def test_a_tensor_that_keeps_its_numbers_in_several_is_refused(tmp_path: Path) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    module = nn.Linear(3, 2)
    module.weight = nn.Parameter(TwoTensor(torch.ones(2, 3), torch.zeros(2, 3)))
    with pytest.raises(LayoutError, match="`weight` is a TwoTensor"):
        intarsia.save(tmp_path / "ck", module)
    assert not (tmp_path / "ck").exists()


def test_parameters_without_elements_and_buffers_shared_on_meta_are_filled(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.none = nn.Parameter(torch.empty(0, 4))
            self.a, self.b = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
            self.b.running_mean = self.a.running_mean

    first = Odd()
    first.a.running_mean.fill_(7)
    intarsia.save(tmp_path / "ck", first)
    with torch.device("meta"):
        other = Odd()
    assert intarsia.load(tmp_path / "ck", into=other).complete
    assert other.none.shape == (0, 4)
    assert other.a.running_mean.tolist() == [7, 7, 7]
    assert other.b.running_mean is other.a.running_mean


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (nn.LazyLinear(3), "lazy module"),
        ({"weight": torch.eye(3).to_sparse()}, "torch.sparse_coo"),
        ({"weight": torch.eye(3).to_sparse_csr()}, "torch.sparse_csr"),
        ({"weight": torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])}, "torch.strided"),
    ],
    ids=["lazy", "sparse", "rows", "nested"],
)
def test_a_tensor_that_is_not_its_memory_is_refused_by_name(
    given: Any, word: str, tmp_path: Path
) -> None:
    with pytest.raises(LayoutError, match=rf"weight` is .*{word}"):
        intarsia.save(tmp_path / "a", given)
    intarsia.save(tmp_path / "plain", {"weight": torch.ones(3), "bias": torch.ones(3)})
    with pytest.raises(LayoutError, match=rf"weight` is .*{word}"):
        intarsia.load(tmp_path / "plain", into=given)


@pytest.mark.parametrize("background", [False, True])
def test_a_conjugated_and_a_negated_view_are_saved_as_the_numbers_that_they_show(
    background: bool, tmp_path: Path
) -> None:
    shown = torch.tensor([1 + 2j, 3 - 4j]).conj()
    saving = intarsia.save(tmp_path / "a", {"c": shown, "n": shown.imag}, background=background)
    if background:
        saving.wait()
    found = intarsia.open(tmp_path / "a")
    assert torch.equal(found["c"][...], torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(found["n"][...], torch.tensor([-2.0, 4.0]))
    into = {"c": torch.zeros(2, dtype=torch.complex64), "n": torch.zeros(2)}
    intarsia.load(tmp_path / "a", into=into)
    assert torch.equal(into["c"], shown)


def test_a_conjugated_view_has_the_bytes_of_what_it_shows() -> None:
    held = torch.tensor([1 + 2j, 3 - 4j])
    assert equal_bytes(held.conj(), torch.tensor([1 - 2j, 3 + 4j]))
    assert equal_bytes(held.conj().imag, torch.tensor([-2.0, 4.0]))
    assert not equal_bytes(held.conj(), held)


class InTwo(torch.Tensor):
    """A tensor that says which tensors its numbers are in, as torchao's do."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scales"], None


@pytest.mark.parametrize(
    ("package", "step"),
    [
        ("torchao.dtypes", "give those tensors in a dict"),
        ("transformer_engine.pytorch", "set_device_mesh"),
    ],
)
def test_a_tensor_of_several_is_refused_with_what_can_be_done_with_its_class(
    package: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InTwo, "__module__", package)
    with pytest.raises(LayoutError, match="`w` is a InTwo, which keeps") as found:
        of_numbers(torch.ones(2).as_subclass(InTwo), "w")
    assert step in str(found.value.hint)
    assert ("set_device_mesh" in str(found.value)) == (step == "set_device_mesh")

"""What a module does of its own when it is loaded, it does after `intarsia.load` as after `load_state_dict`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import intarsia
from intarsia.errors import CoverageError
from intarsia.live.model.load_hooks import modules_with_hooks


class Derived(nn.Module):
    """Computes with a transposed copy of its weight, which no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("turned", torch.empty(4, 4), persistent=False)
        self.turn()

    def turn(self, *_: Any) -> None:
        self.turned = self.weight.detach().T.contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.turned


class ByPostHook(Derived):
    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(ByPostHook.turn)


class ByPartial(Derived):
    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(partial(ByPartial.turn))


class ByMethod(Derived):
    def _load_from_state_dict(self, *given: Any) -> None:
        super()._load_from_state_dict(*given)
        self.turn()


class Doubling(nn.Linear):
    """A hook changes the numbers on the way in."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_load_state_dict_pre_hook(self.double)

    @staticmethod
    def double(module: Any, state: Any, prefix: str, *_: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"] * 2


class Versioned(nn.Linear):
    """Turns what its first version saved."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *more: Any) -> None:
        if metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"].T
        super()._load_from_state_dict(state, prefix, metadata, *more)


class Taking(nn.Linear):
    """Changes a number in the state dict that it is given."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def load_state_dict(self, state_dict: Any, *given: Any, **options: Any) -> Any:
        state_dict["weight"] = state_dict["weight"] * 2
        return super().load_state_dict(state_dict, *given, **options)


class Outermost(Derived):
    def load_state_dict(self, *given: Any, **options: Any) -> Any:
        found = super().load_state_dict(*given, **options)
        self.turn()
        return found


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside"])
@pytest.mark.parametrize("kind", [ByPostHook, ByPartial, ByMethod])
def test_what_is_derived_from_weights_is_derived_from_the_new_ones(
    kind: type[Derived], inside: bool, tmp_path: Path
) -> None:
    a, b = (nn.Sequential(nn.Linear(4, 4), kind()) if inside else kind() for _ in range(2))
    intarsia.save(tmp_path / "a", a)
    intarsia.load(tmp_path / "a", into=b)
    x = torch.randn(2, 4)
    assert torch.equal(b(x), a(x))


def test_load_state_dict_itself_is_called_of_the_outermost_module_alone(tmp_path: Path) -> None:
    a, b = Outermost(), Outermost()
    intarsia.save(tmp_path / "a", a)
    intarsia.load(tmp_path / "a", into=b)
    assert torch.equal(b.turned, a.turned)
    assert list(modules_with_hooks(nn.Sequential(b))) == []


@pytest.mark.parametrize("kind", [Doubling, Taking])
def test_a_hook_that_changes_numbers_is_refused(kind: type[nn.Module], tmp_path: Path) -> None:
    intarsia.save(tmp_path / "a", kind())
    with pytest.raises(
        CoverageError, match=rf"{kind.__name__} loads .* 1 tensors differ .*: weight"
    ):
        intarsia.load(tmp_path / "a", into=kind())


def test_a_hook_that_fails_is_refused_whatever_it_raises(tmp_path: Path) -> None:
    def fail(*_: Any) -> None:
        raise LookupError("no table")

    module = nn.Linear(4, 4)
    module.register_load_state_dict_post_hook(fail)
    intarsia.save(tmp_path / "a", module)
    with pytest.raises(
        CoverageError, match="load_state_dict does not accept the tensors: no table"
    ):
        intarsia.load(tmp_path / "a", into=module)


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside"])
def test_a_module_is_given_its_state_as_of_its_version(inside: bool, tmp_path: Path) -> None:
    a, b = (nn.Sequential(Versioned(4, 4)) if inside else Versioned(4, 4) for _ in range(2))
    intarsia.save(tmp_path / "a", a)
    intarsia.load(tmp_path / "a", into=b)
    assert all(torch.equal(x, a.state_dict()[name]) for name, x in b.state_dict().items())


def test_modules_of_torch_and_transformers_are_filled_without_a_copy() -> None:
    from transformers import MambaConfig, MambaModel

    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    mamba = MambaModel(MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=9))
    model = nn.Sequential(normed, nn.BatchNorm1d(3), mamba)
    assert list(modules_with_hooks(model)) == []


def test_a_hook_is_its_packages_whatever_is_around_it_and_however_that_begins() -> None:
    module = nn.Linear(3, 3)
    module.register_load_state_dict_post_hook(partial(torch.compiler.reset))
    assert list(modules_with_hooks(module)) == []

    def hook(*_: Any) -> None:
        """One of a package whose name begins as that of torch does."""

    hook.__module__ = "torchao.somewhere"
    module.register_load_state_dict_post_hook(hook)
    assert list(modules_with_hooks(nn.Sequential(module))) == [module]


def test_a_module_is_loaded_by_the_outermost_one_that_has_hooks() -> None:
    outer = ByMethod()
    outer.inner = ByPostHook()
    assert list(modules_with_hooks(nn.Sequential(outer))) == [outer]

"""A state dict that `--section .` carries whole: torch and accelerate load the copy as they did the source."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from accelerate.utils import merge_fsdp_weights
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
)

import intarsia
from intarsia.errors import SectionError
from tests.checkpoints import assert_same, read_dcp, write_dcp
from tests.journeys.training import adam, trained


def net(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3, bias=False))
    return stepped(model, adam(model.parameters()))


def stepped(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, torch.optim.Optimizer]:
    model(torch.randn(5, 6)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def named(seed: int) -> dict[str, Any]:
    weights, state = get_state_dict(*net(seed))
    return {"trainer": {"net": weights, "opt": state}, "epoch": seed}


def numbered(seed: int) -> dict[str, Any]:
    model, optimizer = net(seed)
    held = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return held | {"schedule": {"last": [{"lr": seed / 7}, None, (seed, b"x")]}}


def in_two_groups(seed: int) -> dict[str, Any]:
    model, _ = net(seed)
    some = [{"params": [x for x in model.parameters() if x.ndim == n]} for n in (2, 1)]
    _, optimizer = stepped(model, adam(some))
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def compiled(seed: int) -> dict[str, Any]:
    model, optimizer = net(seed)
    weights = {f"_orig_mod.{name}": x for name, x in model.state_dict().items()}
    return {"model": weights, "optimizer": get_optimizer_state_dict(model, optimizer)}


def averaged(seed: int) -> dict[str, Any]:
    (model, optimizer), (average, _) = net(seed), net(seed + 50)
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    flat = get_optimizer_state_dict(model, optimizer, options=options)
    return {"model": model.state_dict(), "ema": get_model_state_dict(average), "optim": flat}


def two_models(seed: int) -> dict[str, Any]:
    """As of a GAN: nothing says which optimizer is whose, and nothing needs to."""
    found: dict[str, Any] = {"step": seed}
    for k, word in enumerate(("generator", "discriminator")):
        model, optimizer = net(seed + k)
        found |= {word: model.state_dict(), f"opt_{word[0]}": optimizer.state_dict()}
    return found


def in_lists(seed: int) -> dict[str, Any]:
    made = [net(seed + k) for k in range(2)]
    return {
        "models": [m.state_dict() for m, _ in made],
        "optimizers": [o.state_dict() for _, o in made],
    }


def beside(seed: int) -> dict[str, Any]:
    model, optimizer = net(seed)
    return model.state_dict() | {"optimizer": optimizer.state_dict()}


def torchtitans(seed: int) -> dict[str, Any]:
    """Model and optimizer without keys of their own, and what else the run needs beside them."""
    model, optimizer = net(seed)
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    flat = get_optimizer_state_dict(model, optimizer, options=options)
    beside = {"train_state": {"step": torch.tensor(seed)}, "dataloader": {"rank_0": b"x" * seed}}
    return model.state_dict() | flat | beside | {"lr_scheduler": {"last_epoch": seed}}


def optimizer_alone(seed: int) -> dict[str, Any]:
    return net(seed)[1].state_dict()


def unfolded(x: Any) -> Any:
    """A value that `==` compares bit by bit."""
    if isinstance(x, torch.Tensor):
        return str(x.dtype), x.tolist()
    if isinstance(x, dict):
        return {key: unfolded(value) for key, value in x.items()}
    return [type(x), *map(unfolded, x)] if isinstance(x, list | tuple) else x


def whole(folder: Path) -> Any:
    """The nested state dict, as torch makes a file of it."""
    file = folder.with_suffix(".pt")
    with warnings.catch_warnings(action="ignore"):
        dcp_to_torch_save(folder, file)
    return unfolded(torch.load(file))


@pytest.mark.parametrize(
    "made",
    [
        named, numbered, in_two_groups, compiled, averaged, two_models, in_lists, beside,
        torchtitans, optimizer_alone,
    ],
)  # fmt: skip
@pytest.mark.one_in(3)
def test_torch_loads_the_copy_as_the_source(
    tmp_path: Path, made: Callable[[int], dict[str, Any]]
) -> None:
    src, out = write_dcp(tmp_path / "src", saved := copy.deepcopy(made(7))), tmp_path / "out"
    intarsia.convert(src, out, to="dcp", mesh="fsdp=2", section=".")
    into = copy.deepcopy(made(1))
    with warnings.catch_warnings(action="ignore"):
        dcp.load(into, checkpoint_id=out, no_dist=True)
    assert unfolded(into) == unfolded(saved)
    assert whole(out) == whole(src)
    assert intarsia.verify(src, out, section=".")
    assert intarsia.verify(src, src, section=".")
    assert intarsia.verify(out, section=".")
    if made not in (two_models, in_lists):
        assert intarsia.verify(src, out)
        assert intarsia.verify(out)
        assert intarsia.digest(out) == intarsia.digest(src)


def test_digests_hold_for_every_section_of_the_copy(tmp_path: Path) -> None:
    src, out = write_dcp(tmp_path / "src", averaged(3)), tmp_path / "out"
    intarsia.convert(src, out, to="dcp", section=".")
    for section in (None, ".", "model", "ema"):
        assert intarsia.verify(out, section=section)
    intarsia.convert(out, tmp_path / "ema", to="hf", section="ema")
    assert intarsia.verify(src, tmp_path / "ema", section="ema")
    other, changed = write_dcp(tmp_path / "other", averaged(4)), tmp_path / "changed"
    intarsia.convert(other, changed, to="dcp", section=".")
    (out / "intarsia-digests.json").rename(changed / "intarsia-digests.json")
    for section, tensors in ((None, 9), (".", 12), ("model", 9), ("ema", 3)):
        (fault,) = intarsia.verify(changed, section=section).faults
        assert (fault.kind, len(fault.tensors)) == ("digest-differs", tensors)


def test_accelerate_merges_the_weights_of_the_copy_under_their_names(tmp_path: Path) -> None:
    model, _ = net(5)
    src, out = write_dcp(tmp_path / "src", {"model": model.state_dict()}), tmp_path / "out"
    intarsia.convert(src, out, to="dcp", mesh="fsdp=2", section=".")
    with warnings.catch_warnings(action="ignore"):
        merge_fsdp_weights(str(out), str(tmp_path / "merged"))
    assert_same(load_file(tmp_path / "merged" / "model.safetensors"), model.state_dict())


@pytest.mark.parametrize("key", ["optimizer", "opt"])
def test_an_optimizer_alone_is_carried_under_its_own_key(tmp_path: Path, key: str) -> None:
    saved = {key: get_state_dict(*trained())[1]}
    src, out = write_dcp(tmp_path / "src", saved), tmp_path / "out"
    intarsia.convert(src, out, to="dcp", mesh="fsdp=2", section=".")
    assert_same(read_dcp(out), read_dcp(src))
    assert intarsia.verify(src, out, section=".")
    assert intarsia.verify(src, out)
    with pytest.raises(SectionError, match=rf"no section 'model'\n.*its sections: {key}$"):
        intarsia.open(src, section="model")


def test_another_model_beside_the_one_without_a_key_is_left_out_with_its_objects(
    tmp_path: Path,
) -> None:
    (model, _), (average, _) = net(1), net(2)
    saved = model.state_dict() | {"ema": average.state_dict() | {"decay": 0.9}, "step": 5}
    src = write_dcp(tmp_path / "src", saved)
    report = intarsia.convert(src, tmp_path / "out", to="dcp", section=".")
    assert not report.complete
    written = dcp.FileSystemReader(tmp_path / "out").read_metadata().state_dict_metadata
    assert written.keys() == {*model.state_dict(), "step"}
    assert_same(read_dcp(tmp_path / "out"), model.state_dict())

"""Models inside wrappers: compiled layer by layer, checkpointed, DDP; in files and in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel

import intarsia
from intarsia.errors import CoverageError, UsageError
from tests.checkpoints import assert_same, read_dcp, read_hf, write_dcp, write_hf
from tests.journeys.training import adam, goes_on, small, trained, uninterrupted

WORDS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.one_in(2)
def test_a_wrappers_word_in_every_layer_is_taken_out(tmp_path: Path, word: str) -> None:
    model, optimizer = trained()
    clean = {name: x.clone() for name, x in model.state_dict().items()}
    names = {re.sub(r"(layers\.\d+)", rf"\1.{word}", name): x for name, x in clean.items()}
    saved = {"model": names, "optimizer": optimizer.state_dict()}
    src = write_dcp(tmp_path / "src", saved)
    losses = uninterrupted(model, optimizer)
    goes_on(src, losses)
    intarsia.convert(src, tmp_path / "hf", to="hf", config=model.config.to_dict())
    assert_same(read_hf(tmp_path / "hf"), clean)
    file = write_hf(tmp_path / "file", {f"module.{name}": x for name, x in names.items()})
    into = small(3)
    intarsia.load(file, into=into)
    assert_same(into.state_dict(), clean)


def test_a_submodule_that_is_called_module_keeps_its_name(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = torch.nn.Linear(3, 3)

    model = Odd()
    intarsia.save(tmp_path / "odd", model)
    assert_same(read_dcp(tmp_path / "odd"), model.state_dict())
    again = Odd()
    intarsia.load(tmp_path / "odd", into=again)
    assert_same(again.state_dict(), model.state_dict())


def test_a_model_inside_ddp_is_saved_as_itself(tmp_path: Path, group: None) -> None:
    model, optimizer = trained()
    clean = {name: x.clone() for name, x in model.state_dict().items()}
    intarsia.save(tmp_path / "ddp", DistributedDataParallel(model), optimizer)
    losses = uninterrupted(model, optimizer)
    held = read_dcp(tmp_path / "ddp")
    assert_same({n: x for n, x in held.items() if not n.startswith("optimizer.")}, clean)
    goes_on(tmp_path / "ddp", losses)
    intarsia.convert(tmp_path / "ddp", tmp_path / "hf", to="hf")
    assert_same(read_hf(tmp_path / "hf"), clean)
    into = DistributedDataParallel(small(3))
    again = adam(into.parameters(), lr=0.5)
    intarsia.load(tmp_path / "ddp", into=into, optimizer=again)
    assert_same(into.module.state_dict(), clean)
    assert len(again.state) == len(clean)


@pytest.mark.parametrize("key", ["model", "by name", "state_dict", "net", None, "safetensors"])
def test_a_state_dict_of_ddps_own_is_loaded_where_no_table_knows_the_model(
    tmp_path: Path, key: str | None, group: None
) -> None:
    def new(seed: int) -> torch.nn.Sequential:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))

    model = new(1)
    wrapped = DistributedDataParallel(model)
    optimizer = adam(wrapped.parameters())
    wrapped(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()
    held = wrapped.state_dict()
    assert all(name.startswith("module.") for name in held)
    if key == "safetensors":
        src = write_hf(tmp_path / "src", held)
    elif key == "model":
        src = write_dcp(tmp_path / "src", {key: held, "optimizer": optimizer.state_dict()})
    elif key == "by name":  # torch takes the wrapper's word out of these names
        state = get_optimizer_state_dict(wrapped, optimizer)
        src = write_dcp(tmp_path / "src", {"model": held, "optimizer": state})
    else:
        src = write_dcp(tmp_path / "src", {key: held} if key else held)
    for inside in (False, True):
        into = new(2)
        outer = DistributedDataParallel(into) if inside else into
        again = adam(outer.parameters(), lr=0.5) if key in ("model", "by name") else None
        assert intarsia.load(src, into=outer, optimizer=again).complete
        assert_same(into.state_dict(), model.state_dict())
        for number, kinds in optimizer.state_dict()["state"].items() if again else ():
            assert_same(again.state_dict()["state"][number], kinds)


def test_a_name_that_two_tensors_have_without_a_wrappers_word_is_no_ones(tmp_path: Path) -> None:
    held = {"module.0.weight": torch.ones(2, 2), "0.module.weight": torch.zeros(2, 2)}
    src = write_hf(tmp_path / "src", held)
    with pytest.raises(CoverageError, match=r"1 of 1 tensors of the model have no source"):
        intarsia.load(src, into={"0.weight": torch.empty(2, 2)}, strict=False)


@pytest.mark.parametrize("held", ["net.weight", "net.module.weight", "module.net.weight"])
def test_one_tensor_is_not_loaded_under_two_names_that_differ_by_a_wrappers_word(
    tmp_path: Path, held: str
) -> None:
    src = write_hf(tmp_path / "src", {held: torch.ones(2, 2)})
    asked = {"net.weight", "net.module.weight"} | {held}
    with pytest.raises(UsageError, match=f"both ask for `{held}`"):
        intarsia.load(src, into={name: torch.zeros(2, 2) for name in sorted(asked)})


def test_layers_that_are_compiled_or_checkpointed_are_saved_under_their_own_names(
    tmp_path: Path,
) -> None:
    model, optimizer = trained()
    clean = {name: x.clone() for name, x in model.state_dict().items()}
    layers = model.model.layers
    layers[0] = checkpoint_wrapper(layers[0])
    layers[1] = torch.compile(layers[1])
    assert any("_orig_mod" in name for name, _ in model.named_parameters())
    intarsia.save(tmp_path / "wrapped", model, optimizer)
    held = read_dcp(tmp_path / "wrapped")
    assert_same({n: x for n, x in held.items() if not n.startswith("optimizer.")}, clean)
    kept = {k: v.clone() for k, v in optimizer.state[model.lm_head.weight].items()}
    into = small(3)
    into.model.layers[1] = torch.compile(into.model.layers[1])
    again = adam(into.parameters(), lr=0.5)
    intarsia.load(tmp_path / "wrapped", into=into, optimizer=again)
    assert len(again.state) == len(clean)
    assert torch.equal(again.state[into.lm_head.weight]["exp_avg"], kept["exp_avg"])


@pytest.mark.parametrize("sharded", ["FSDP1", "FSDP2"])
def test_adapters_inside_fsdp_are_saved_as_those_of_the_plain_model(
    tmp_path: Path, group: None, sharded: str
) -> None:
    from peft import LoraConfig, get_peft_model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    config = LoraConfig(target_modules=["up"], r=2)

    def adapted(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        model = torch.nn.ModuleDict({"up": torch.nn.Linear(4, 6), "down": torch.nn.Linear(6, 4)})
        found: torch.nn.Module = get_peft_model(model, config)
        return found

    plain, wrapped = adapted(0), adapted(0)
    if sharded == "FSDP2":
        fully_shard(wrapped, mesh=init_device_mesh("cpu", (1,)))
    else:
        cpu = torch.device("cpu")
        wrapped = FullyShardedDataParallel(wrapped, use_orig_params=True, device_id=cpu)
    intarsia.save(tmp_path / "plain", plain)
    intarsia.save(tmp_path / "wrapped", wrapped)
    assert_same(read_dcp(tmp_path / "wrapped"), read_dcp(tmp_path / "plain"))
    again = adapted(1)
    intarsia.load(tmp_path / "wrapped", into=again)
    assert_same(again.state_dict(), plain.state_dict())

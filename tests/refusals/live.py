"""Live models and dicts that cannot be filled or saved whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import intarsia
from tests.refusals.case import refusal


@refusal("A save without a single tensor", area="live")
def nothing_to_save(tmp: Path) -> None:
    intarsia.save(tmp / "out", {"step": 7})


@refusal("A submodule with a name of optimizer state", area="live")
def named_as_state(tmp: Path) -> None:
    from torch import nn

    intarsia.save(tmp / "out", nn.ModuleDict({"optimizer": nn.Linear(2, 3)}))


@refusal("A value in the dict that is not plain", area="live")
def value_that_is_not_plain(tmp: Path) -> None:
    import torch

    intarsia.save(tmp / "out", {"w": torch.ones(2), "tokenizer": object()})


@refusal("A module that hands out copies and takes nothing back", area="live")
def copies(tmp: Path) -> None:
    from torch import nn

    class Sealed(nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination[f"{prefix}weight"] = self.weight.detach().clone()

        def _load_from_state_dict(self, *given: Any) -> None:
            pass

    intarsia.save(tmp / "model", Sealed(2, 3))
    intarsia.load(tmp / "model", into=Sealed(2, 3))


@refusal("A value that the dict asks for and the checkpoint lacks", area="live")
def missing_value(tmp: Path) -> None:
    import torch

    intarsia.save(tmp / "model", {"w": torch.ones(2)})
    intarsia.load(tmp / "model", into={"w": torch.ones(2), "step": 0})


@refusal("A stacked weight of TransformerEngine that is quantised", area="live")
def quantised_stack(tmp: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from intarsia.live.transformer_engine import set_device_mesh

    class GroupedLinear(nn.Module):
        """What TransformerEngine's has under `quantized_model_init`."""

        def __init__(self) -> None:
            super().__init__()
            self.num_gemms, self.parallel_mode, self.tp_size = 3, "column", 2
            self.weight = nn.Parameter(torch.ones(3, 4, 8))
            vars(self.weight).update(num_tensors=3, rowwise_data=None, quantizer=object())

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        set_device_mesh(GroupedLinear(), init_device_mesh("cpu", (2,)))
    finally:
        dist.destroy_process_group()


@refusal("A checkpoint of the model inside of PEFT", area="live")
def without_adapters(tmp: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from torch import nn

    intarsia.save(tmp / "base", nn.Sequential(nn.Linear(2, 3)))
    model = get_peft_model(nn.Sequential(nn.Linear(2, 3)), LoraConfig(r=1, target_modules=["0"]))
    intarsia.load(tmp / "base", into=model)


@refusal("Adapters that are merged into the weights", area="live")
def merged_adapters(tmp: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from torch import nn

    model = get_peft_model(nn.Sequential(nn.Linear(2, 3)), LoraConfig(r=1, target_modules=["0"]))
    model.merge_adapter()
    intarsia.save(tmp / "out", model)


@refusal("A buffer on `meta` that no checkpoint holds", area="live")
def buffer_on_meta(tmp: Path) -> None:
    import torch
    from torch import nn

    intarsia.save(tmp / "model", nn.Linear(2, 3))
    model = nn.Linear(2, 3, device="meta")
    model.register_buffer("angles", torch.empty(4, device="meta"), persistent=False)
    intarsia.load(tmp / "model", into=model)


@refusal("A module that does not hand out all that it has", area="live")
def not_handed_out(tmp: Path) -> None:
    from torch import nn

    class Shy(nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination[f"{prefix}weight"] = self.weight

    intarsia.save(tmp / "out", Shy(2, 3))


@refusal("Mixed precision of accelerate that does not reach a placed model", area="live")
def precision_out_of_reach(tmp: Path) -> None:
    import torch
    from accelerate.state import AcceleratorState
    from torch import nn

    from intarsia.live.parallel.prepared import mark_placed

    model = nn.Linear(2, 3)
    mark_placed(model)
    state = AcceleratorState._shared_state
    before = dict(state)
    state["_mixed_precision"] = "bf16"
    try:
        model(torch.ones(1, 2))
    finally:
        state.clear()
        state.update(before)


@refusal("A tensor of another type in a mapped load", area="live")
def mapped_in_another_type(tmp: Path) -> None:
    import torch

    intarsia.save(tmp / "model", torch.nn.Linear(2, 3))
    intarsia.load(tmp / "model", into=torch.nn.Linear(2, 3).bfloat16(), mapped=True)


@refusal("The state dict of a module in a mapped load", area="live")
def mapped_into_a_state_dict(tmp: Path) -> None:
    import torch

    model = torch.nn.Linear(2, 3)
    intarsia.save(tmp / "model", model)
    intarsia.load(tmp / "model", into=model.state_dict(), mapped=True)


@refusal("A model that fills its own memory in a mapped load", area="live")
def mapped_into_copies(tmp: Path) -> None:
    import torch

    class Copying(torch.nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination[prefix + "weight"] = self.weight.detach().clone()
            destination[prefix + "bias"] = self.bias.detach().clone()

    intarsia.save(tmp / "model", torch.nn.Linear(2, 3))
    intarsia.load(tmp / "model", into=Copying(2, 3), mapped=True)

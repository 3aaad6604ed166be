"""A checkpoint of ours in a real Megatron-FSDP model; run once per rank.

    torchrun ... -m tests.live.megatron_fsdp_worker FSDP_DTENSOR HF tp ep

The first is loaded by Megatron-core's own code and torch's DCP, the second by ours.  Both must
give the model and its optimizer the same bits, and the splits of states must be Megatron's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from tests.live.megatron_fsdp_on_cpu import parallel_state, wrapped_model

from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import (  # isort: skip
    preprocess_state_dict_for_uneven_dtensor,
)
from megatron.core.transformer import fsdp_dtensor_checkpoint as megatron  # isort: skip

import intarsia
from intarsia.live.megatron_fsdp import ParameterSlice, gated, gated_names, split
from intarsia.live.megatron_load import load_parameters

MOMENTS = ("exp_avg", "exp_avg_sq")


def empty_state(model: Any) -> dict[str, dict[str, Any]]:
    """Optimizer state of every parameter, also of those that this rank holds nothing of."""
    return {
        name: {kind: torch.zeros_like(p) for kind in MOMENTS} | {"step": torch.zeros(())}
        for name, p in model.named_parameters()
    }


def load_as_megatron(model: Any, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What Megatron-LM does before and in a load of `fsdp_dtensor`."""
    weights = model.state_dict_for_save_checkpoint()
    megatron.handle_fp8_extra_state_case(weights)
    state = {"state": empty_state(model), "param_to_group_meta": {}}
    count = model.config.num_moe_experts
    state["state"] = megatron.handle_experts_in_state_dict(state["state"], count)
    weights, state = megatron.handle_swiglu_in_state_dict(model.module, weights, state)
    weights = megatron.handle_experts_in_state_dict(weights, count)
    nested = {"model": weights, "optimizer": state}
    preprocess_state_dict_for_uneven_dtensor(nested)
    dcp.load(nested, checkpoint_id=path)
    return weights, state["state"]


def global_name(count: int | None) -> Any:
    def name_of(name: str) -> str:
        (found,) = megatron.handle_experts_in_state_dict({name: None}, count)
        return str(found)

    return name_of


def check_splits(model: Any, theirs: dict[str, Any], count: int | None) -> int:
    """Megatron's halves of DTensors, and ours of the same elements as plain tensors."""
    checked = 0
    name_of = global_name(count)
    for name, param in model.named_parameters():
        if name.rpartition(".")[0] not in gated_names(model):
            continue
        item = ParameterSlice.of(param)
        plain = param.to_local().detach().clone().reshape(-1)
        for state in (param, plain):
            for part in split(state, item, gated(item)):
                key = name_of(name).removeprefix("module.module.")
                want = theirs[f"{key}{part.name}"].to_local()
                assert part.tensor is not None
                assert torch.equal(part.tensor.reshape(-1), want.reshape(-1)), (name, part.name)
                checked += 1
    return checked


def main(path: str, hf: str, tp: str, ep: str) -> None:
    with intarsia.open(hf) as ck:
        model = wrapped_model(dict(ck.config or {}), int(tp), int(ep))
        count = model.config.num_moe_experts
        weights, states = load_as_megatron(model, path)
        splits = check_splits(model, weights, count)
        loaded = {n: p.to_local().detach().clone() for n, p in model.named_parameters()}
        empty = sum(not x.numel() for x in loaded.values())
        for p in model.parameters():
            p.detach().to_local().zero_()
        ours = empty_state(model)
        report = load_parameters(
            ck, dict(model.named_parameters()), ours, name_of=global_name(count)
        )
        for name, p in model.named_parameters():
            assert torch.equal(p.to_local(), loaded[name]), name
            for kind in MOMENTS:
                item, value = ParameterSlice.of(p), ours[name][kind]
                key = global_name(count)(name)
                if key in states:
                    assert torch.equal(value.to_local(), states[key][kind].to_local()), name
                    continue
                for part in split(value, item, gated(item)):
                    want = states[f"{key}{part.name}"][kind].to_local()
                    assert part.tensor is not None
                    assert torch.equal(part.tensor.reshape(-1), want.reshape(-1)), name
            assert ours[name]["step"] == 7.0, name
    found = torch.tensor([len(report.filled), splits, empty])
    dist.all_reduce(found, op=dist.ReduceOp.SUM)
    if dist.get_rank() == 0:
        Path(path, "done").write_text(" ".join(map(str, found.tolist())))
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

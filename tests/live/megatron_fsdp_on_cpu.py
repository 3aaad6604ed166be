"""A real Megatron-FSDP model on CPUs with gloo; import it before megatron."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as meshes
from torch.distributed.device_mesh import DeviceMesh

from tests.parity import megatron_on_cpu


def _cpu(device: Any) -> Any:
    """The CPU in place of a device that does not exist."""
    kind = getattr(device, "type", device)
    return "cpu" if isinstance(kind, int) or str(kind).startswith("cuda") else device


def pretend() -> None:
    """Answer for `torch.cuda` in this process, meshes and placement of tensors included."""
    megatron_on_cpu.pretend()
    torch.cuda.current_device = lambda: 0
    made, moved, grouped = DeviceMesh.__init__, torch.Tensor.to, DeviceMesh.from_group

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        made(self, _cpu(device_type), *args, **kwargs)

    def from_group(group: Any, device_type: str, *args: Any, **kwargs: Any) -> DeviceMesh:
        return grouped(group, _cpu(device_type), *args, **kwargs)

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        args = tuple(_cpu(x) if isinstance(x, str | torch.device) else x for x in args)
        if kwargs.get("device") is not None:
            kwargs["device"] = _cpu(kwargs["device"])
        return moved(self, *args, **kwargs)

    DeviceMesh.__init__ = init  # type: ignore[method-assign]
    DeviceMesh.from_group = staticmethod(from_group)  # type: ignore[method-assign, assignment]
    torch.Tensor.to = to  # type: ignore[method-assign, assignment]
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    torch.Tensor.record_stream = lambda self, *args, **kwargs: None  # type: ignore[method-assign]
    plain = meshes.init_device_mesh

    def on_cpu(device_type: str, *args: Any, **kwargs: Any) -> DeviceMesh:
        return plain(_cpu(device_type), *args, **kwargs)

    meshes.init_device_mesh = on_cpu
    dist.init_device_mesh = on_cpu  # type: ignore[attr-defined]


pretend()
megatron_on_cpu.pretend = lambda: None

import megatron.core.distributed.fsdp.mcore_fsdp_adapter as adapter
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module

from tests.parity.megatron_logits import build

if not isinstance(getattr(adapter, "TELinear", type), type):
    # Without TransformerEngine the name, where there is one, is no class, and nothing is an instance of it.
    adapter.TELinear = type("TELinear", (), {})


def wrapped_model(config: dict[str, Any], tp: int, ep: int) -> Any:
    """A bf16 model of a hub configuration, wrapped as Megatron-LM does it."""
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(
        tp, 1, expert_model_parallel_size=ep, expert_tensor_parallel_size=1
    )
    model_parallel_cuda_manual_seed(1)
    return sharded(build(config, config["vocab_size"], tp, 1, ep, torch.bfloat16).bfloat16())


def sharded(model: Any) -> Any:
    """A bf16 model in Megatron's precision wrapper and in Megatron-FSDP."""
    settings = DistributedDataParallelConfig(
        use_megatron_fsdp=True,
        data_parallel_sharding_strategy="optim_grads_params",
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
    )
    inner = Float16Module(model.config, model)
    return adapter.FullyShardedDataParallel(
        model.config, settings, inner, device=torch.device("cpu")
    )

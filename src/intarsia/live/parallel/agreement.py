"""Do all ranks of a mesh hold the same whole model?

Each rank takes its part of the weights that it holds, and nothing is broadcast: a rank that
drew other random numbers, or that was left with zeros for a broadcast to fill, must be found
before its part becomes a part of the model.
"""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from intarsia.errors import CoverageError

SAMPLES = 1024
"""Elements of a tensor that are compared, evenly spread: a fingerprint, not a proof."""


def assert_same_model(model: nn.Module, mesh: DeviceMesh) -> None:
    """Refuse, on every rank, a model that differs between ranks of the mesh; collective."""
    device = mesh.device_type
    if device != "cpu":
        device += f":{getattr(torch, device).current_device()}"
    found = torch.tensor(fingerprints(model), device=device)
    for dim in reversed(range(mesh.ndim)):
        parts = [torch.empty_like(found) for _ in range(mesh.size(dim))]
        dist.all_gather(parts, found, group=mesh.get_group(dim))
        found = torch.stack(parts)
    found = found.reshape(-1, 2).cpu()
    differs = (found != found[0]).any(0).tolist()
    if any(differs):
        ranks = mesh.mesh.flatten()[(found != found[0]).any(1)].tolist()
        raise CoverageError(
            f"rank {ranks[0]} holds other {'parameters' if differs[0] else 'weights'} than rank "
            f"{mesh.mesh.flatten()[0].item()}; {len(ranks)} of {len(found)} ranks differ",
            hint="each rank keeps its own part: load the same weights on every rank, or build "
            "the model on `meta` and load afterwards",
        )


def fingerprints(model: nn.Module) -> tuple[int, int]:
    """One number for the names, shapes and types of all tensors, one for their values."""
    names, values = hashlib.blake2b(digest_size=7), hashlib.blake2b(digest_size=7)
    for name, x in model.state_dict(keep_vars=True).items():
        if isinstance(x, Tensor):
            names.update(f"{name} {tuple(x.shape)} {x.dtype} {x.is_meta}\n".encode())
            values.update(_sample(x.detach()))
    return int(names.hexdigest(), 16), int(values.hexdigest(), 16)


def _sample(x: Tensor) -> bytes:
    if x.is_meta or not x.numel():
        return b""
    every = -(-x.numel() // SAMPLES)
    taken = x.reshape(-1)[::every].contiguous().view(torch.uint8)
    return bytes(taken.cpu().numpy().tobytes())

"""Hub weights into Transformers models on meshes and back, bit by bit; nothing is broadcast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

import intarsia
from tests.distributed.ranks import on_ranks

DENSE: dict[str, Any] = {
    "vocab_size": 72, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = DENSE | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
CONFIGS = {"qwen3": Qwen3Config(**DENSE), "qwen3_moe": Qwen3MoeConfig(**EXPERTS)}

# Tensor, context and expert parallel; context-parallel ranks hold what data-parallel ones do.
MESHES = {
    (2, 1, 4): {"ep": 4, "tp": 2},
    (1, 1, 8): {"ep": 8},
    (2, 1, 1): {"tp": 2},
    (4, 1, 2): {"ep": 2, "tp": 4},
    (2, 2, 2): {"dp": 2, "ep": 2, "tp": 2},
}
CASES = [
    pytest.param(kind, mesh, id=f"{kind}-{'-'.join(map(str, key))}",
                 marks=() if key == (2, 1, 1) or (kind, key) == ("qwen3_moe", (2, 2, 2)) else pytest.mark.slow)
    for kind in CONFIGS
    for key, mesh in MESHES.items()
]  # fmt: skip


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small copies of both models as Transformers saves them."""
    folder = tmp_path_factory.mktemp("hub")
    torch.manual_seed(5)
    for kind, config in CONFIGS.items():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder / kind)
    return {kind: folder / kind for kind in CONFIGS}


def there_and_back(path: Path, out: Path, kind: str, axes: dict[str, int]) -> tuple[int, int]:
    """Load on the mesh from `meta`, and save what is there; the bytes read, and those held."""
    sizes, names = tuple(axes.values()), tuple(axes)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIGS[kind], dtype=torch.bfloat16)
    # A dense model has no experts to deal out: those ranks shard it like the others.
    if kind == "qwen3" and "ep" in axes:
        intarsia.parallelize(
            model, mesh, ep=None, fsdp="ep", replicate="dp" if "dp" in axes else None
        )
    else:
        intarsia.parallelize(model, mesh)
    report = intarsia.load(path, into=model)
    intarsia.save(out, model)
    return report.read_bytes, report.held_bytes


@pytest.mark.parametrize(("kind", "mesh"), CASES)
@pytest.mark.one_in(4)
def test_hub_weights_go_into_a_mesh_and_come_back(
    hub: dict[str, Path], tmp_path: Path, kind: str, mesh: dict[str, int]
) -> None:
    count = 1
    for n in mesh.values():
        count *= n
    on_ranks(count, there_and_back, hub[kind], tmp_path / "saved", kind, mesh)
    assert intarsia.verify(tmp_path / "saved")
    intarsia.convert(tmp_path / "saved", tmp_path / "hf", to="hf", dialect="hf")
    found = intarsia.verify(hub[kind], tmp_path / "hf")
    assert found, str(found)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.bfloat16)
    truth = AutoModelForCausalLM.from_pretrained(hub[kind], dtype=torch.bfloat16)
    for (name, a), b in zip(truth.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name

"""A random model with random optimizer state, saved by torch, on a random road through formats and meshes.

torch reads what arrives at its end, and every element must be what was saved; so must those of a live model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers import AutoModelForCausalLM

import intarsia
from tests.checkpoints import write_hf
from tests.faults.random_checkpoints import FAMILIES, Config, Tensors, weights

AXES = {
    "hf": (),
    "dcp": ("tp", "ep", "fsdp", "replicate"),
    "torch_dist": ("tp", "ep", "pp", "cp", "etp", "fsdp"),
    "fsdp_dtensor": ("tp", "ep", "fsdp", "replicate"),
}
STATE = ("exp_avg", "exp_avg_sq")


def random_config(random: Random) -> tuple[str, Config]:
    """The configuration of a family with other sizes."""
    family = random.choice([*FAMILIES])
    config = dict(FAMILIES[family])
    layers, heads = random.randint(1, 5), random.choice([2, 4, 6, 8])
    own = [n for n in (1, 2, 3, 4, 6, 8) if heads % n == 0]
    latent = config["model_type"] == "deepseek_v3"
    widths = [
        n for n in (16, 20, 24, 36, 40, 48) if config["model_type"] != "llama" or n % heads == 0
    ]
    config |= {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if latent else random.choice(own),
        "hidden_size": random.choice(widths),
        "head_dim": random.choice([2, 4, 6, 8]),
        "intermediate_size": random.choice([12, 16, 24, 33, 40]),
        "vocab_size": random.choice([47, 48, 64, 100, 129]),
        "tie_word_embeddings": random.random() < 0.3,
    }
    if "layer_types" in config:
        config["layer_types"] = [random.choice(config["layer_types"]) for _ in range(layers)]
    if latent:
        config["first_k_dense_replace"] = random.randint(0, layers)
        config["head_dim"] = config["qk_rope_head_dim"]
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if key in config:
            config[key] = random.choice([2, 3, 4, 6, 8])
    if "mlp_only_layers" in config and random.random() < 0.3:
        config["mlp_only_layers"] = random.sample(range(layers), random.randint(0, layers))
    return family, config


def state_of(tensors: Tensors, random: Random) -> dict[str, Any]:
    """What AdamW holds beside some weights after a few steps."""
    seed = torch.Generator().manual_seed(random.randrange(1 << 30))
    named = [n for n in tensors if "e_score_correction_bias" not in n]
    made = {
        name: {"step": torch.tensor(7.0)}
        | {k: torch.randn(tensors[name].shape, generator=seed) for k in STATE}
        for name in named
    }
    group = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "params": named}
    return {"state": made, "param_groups": [group]}


def random_step(random: Random) -> dict[str, Any]:
    """The options of one conversion."""
    to = random.choice(["hf", "dcp", "dcp", "torch_dist", "torch_dist", "fsdp_dtensor"])
    axes = random.sample(AXES[to], random.randint(0, min(2, len(AXES[to]))))
    step: dict[str, Any] = {
        "to": to,
        "mesh": ",".join(f"{axis}={random.choice([2, 2, 3, 4])}" for axis in axes),
        "workers": random.choice([1, 2, 3]),
    }
    if random.random() < 0.3:
        step["memory"] = random.choice(["16MiB", "40MiB"])
    if to == "hf" and random.random() < 0.5:
        step["max_shard_size"] = random.choice([3000, 20000])
    if to == "torch_dist":
        step["megatron_spec"] = random.choice(["te", "local"])
    if random.random() < 0.3:
        step["digests"] = False
    return step


def travel(seed: int, root: Path) -> tuple[str, str, tuple[str, ...]]:
    """How a road ended, what it was, and what is wrong at its end."""
    random = Random(seed)
    family, config = random_config(random)
    dtype = random.choice([torch.float32, torch.bfloat16, torch.float16])
    tensors = weights(config, dtype, seed)
    state = state_of(tensors, random) if random.random() < 0.6 else {}
    here = start = root / "start"
    passed = [start]
    if not state and random.random() < 0.5:
        write_hf(start, tensors, config, random.choice([1, 3]))
    else:
        held = {"model": tensors} | ({"optimizer": state} if state else {})
        dcp.save(held, checkpoint_id=start, no_dist=True)
    steps = [random_step(random) for _ in range(random.randint(1, 4))]
    steps.append({"to": "dcp", "mesh": random.choice(["", "fsdp=3", "tp=2"])})
    what = f"{family} {dtype} {'with' if state else 'without'} state: {config}"
    for k, step in enumerate(steps):
        there = root / f"{k}-{step['to']}"
        what += f"; {step['to']} {step['mesh']}"
        try:
            rates = "3e-4,1e-5" if state and step["to"] == "torch_dist" else None
            intarsia.convert(here, there, config=config, megatron_lr=rates, **step)
        except intarsia.IntarsiaError as error:
            told = str(error).partition("\n")[0]
            if step is steps[-1]:
                return "refused at its end", what, (told,)
            what += f" (refused: {told})"
            continue
        if not (same := intarsia.verify(start, there, config=config)):
            counted = (str(x) for x in same.beside if x.counts)
            return (
                "unequal",
                what,
                (*same.only_in_a, *same.only_in_b, *map(str, same.different), *counted),
            )
        here = there
        passed.append(here)
    if family == "sinks":  # its experts have other names on the hub
        return "arrived", what, ()
    hub = write_hf(root / "hub", tensors, config)
    return "arrived", what, (*_missing(here, tensors, state), *_unlike(random.choice(passed), hub))


def _unlike(folder: Path, hub: Path) -> Iterator[str]:
    """The tensors of a live model into which a checkpoint was loaded that Transformers loads otherwise."""
    ours = AutoModelForCausalLM.from_pretrained(hub, dtype="auto")
    theirs = {name: x.clone() for name, x in ours.state_dict().items()}
    for x in ours.state_dict().values():
        x.fill_(7)
    intarsia.load(folder, ours)
    for name, x in ours.state_dict().items():
        y = theirs.pop(name)
        if x.dtype != y.dtype or not torch.equal(x, y):
            yield f"{folder.name} as {name}: {y.dtype} {tuple(y.shape)}, {x.dtype} {tuple(x.shape)}"
    yield from (f"{name} is not in the model" for name in theirs)


def _missing(folder: Path, tensors: Tensors, state: Mapping[str, Any]) -> Iterator[str]:
    """What torch does not read as it was saved."""
    held = {
        key: torch.empty(x.size, dtype=x.properties.dtype)
        for key, x in FileSystemReader(folder).read_metadata().state_dict_metadata.items()
        if isinstance(x, TensorStorageMetadata)
    }
    dcp.load(held, checkpoint_id=folder, no_dist=True)
    expected = dict(tensors)
    for name, kinds in state.get("state", {}).items():
        expected |= {f"optimizer.state.{name}.{kind}": x for kind, x in kinds.items()}
        # Megatron keeps them beside weights of any type.
        expected[f"optimizer.state.{name}.master"] = tensors[name].float()
    found = {key if key in expected else key.removeprefix("model."): x for key, x in held.items()}
    for name, x in expected.items():
        y = found.pop(name, None)
        if y is None:
            if not name.endswith(".master"):
                yield f"{name} is missing"
        elif y.dtype != x.dtype or not torch.equal(x, y):
            yield f"{name}: {x.dtype} {tuple(x.shape)}, {y.dtype} {tuple(y.shape)}"
    yield from (f"{name} is new" for name in found)

"""The Megatron rows against checkpoints that Megatron-core and Megatron-Bridge wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from intarsia.family import Table, table_for
from intarsia.family.verbs import by_group, by_group_with_gate, gated
from intarsia.layout import Layout
from tests.family.arrays import carried
from tests.family.configs import DENSE, EXPERTS, of
from tests.family.from_transformers.test_transformers_models import logical_arrays
from tests.fixtures import FIXTURES

CASES = {
    "bridge/llama3/torch_dist_tp2_pp1_ep1_etp1": "bridge/llama3",
    "bridge/qwen3/torch_dist_tp2_pp2_ep1_etp1": "bridge/qwen3",
    "bridge/qwen3_moe/torch_dist_tp2_pp1_ep2_etp2": "bridge/qwen3_moe",
    "bridge/qwen3_moe/torch_dist_tp2_pp2_ep2_etp1": "bridge/qwen3_moe",
    "bridge/deepseek_v3/torch_dist_tp2_pp1_ep2_etp1": "bridge/deepseek_v3",
    "bridge/glm4_moe/torch_dist_tp2_pp2_ep2_etp1": "bridge/glm4_moe",
    "bridge/gpt_oss/torch_dist_tp2_pp1_ep2_etp1": "bridge/gpt_oss",
    "megatron/td_dense_tp2": "megatron/td_dense_tp2",
    "megatron/td_moe_tp2pp2ep2": "megatron/td_moe_tp2pp2ep2",
    "megatron/td_gdn_tp2": "megatron/td_gdn_tp2",
}


@pytest.mark.parametrize("case", CASES)
def test_rows_make_the_stored_tensors(case: str) -> None:
    truth = FIXTURES / CASES[case] / "hf_truth"
    config = json.loads((truth / "config.json").read_text())
    table = table_for(config, zero_centered=False)
    assert table is not None
    made = stacked(table, logical_arrays(table, read_hf(truth)))
    stored = read_dcp(next((FIXTURES / case).glob("iter_*")))
    assert set(made) == set(stored)
    for name, found in stored.items():
        wanted = made[name]
        if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            found = found[: len(wanted)]  # the rest pads the vocabulary
        np.testing.assert_array_equal(wanted, found, err_msg=name)


def stacked(table: Table, logical: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the local-spec rows hold; layers of one kind stacked where they are all alike."""
    rows = table.dialects["megatron-local"]
    made: dict[str, np.ndarray] = {}
    for name, row in rows.items():
        if not table.optional.issuperset(rows.operands(name)):
            made[name] = carried(row.layout, logical) + np.float32(getattr(row.value, "by", 0))
    by_kind: dict[str, list[str]] = {}
    for name in made:
        kind = re.sub(r"^decoder\.layers\.\d+\.", "decoder.layers.", name)
        by_kind.setdefault(kind, []).append(name)
    layers = len({n.split(".")[2] for n in made if n.startswith("decoder.layers.")})
    if {len(names) for kind, names in by_kind.items() if "layers" in kind} != {layers}:
        return made
    return {
        kind: np.stack([made[n] for n in names]) if "layers." in kind else made[names[0]]
        for kind, names in by_kind.items()
    }


def read_hf(folder: Path) -> dict[str, np.ndarray]:
    return {
        name: tensor.to(torch.float32).numpy()
        for name, tensor in load_file(folder / "model.safetensors").items()
    }


def read_dcp(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of the model section, by torch's own reader."""
    reader = FileSystemReader(folder)
    wanted = {
        name: torch.empty(tuple(entry.size), dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if hasattr(entry, "size") and not name.startswith(("optimizer", "rng_state"))
    }
    _load_state_dict(wanted, FileSystemReader(folder), no_dist=True)
    return {name: tensor.to(torch.float32).numpy() for name, tensor in wanted.items()}


MAPPINGS = {
    "gated_mlp": (gated, ("gate", "up")),
    "gated_mlp_bias": (gated, ("gate", "up")),
    "qkv_gqa": (by_group(4), ("q", "k", "v")),
    "qkv_bias": (by_group(4), ("q", "k", "v")),
    "qkv_mha": (by_group(8), ("q", "k", "v")),
    "qkv_output_gate": (by_group_with_gate(4, 4), ("q", "k", "v")),
}


@pytest.mark.parametrize("case", MAPPINGS)
def test_verbs_make_what_the_bridge_makes(case: str) -> None:
    verb, operands = MAPPINGS[case]
    inputs = read_case(case, "input")
    made = verb(*[Layout.of(x, inputs[x].shape) for x in operands])
    (wanted,) = read_case(case, "tp1_rank0").values()
    np.testing.assert_array_equal(carried(made, inputs), wanted)


@pytest.mark.parametrize(("case", "family"), [
    ("gdn_linear_qkvz_ba", "qwen3_next"),
    ("gdn_linear_separate", "qwen3_5_text"),
])  # fmt: skip
def test_components_make_the_bridges_projection(case: str, family: str) -> None:
    given = read_case(case, "input")
    sizes = json.loads((FIXTURES / "mapping_refs" / case / "case.json").read_text())["config"]
    table = table_for(of(family, DENSE, EXPERTS, {"shared_expert_intermediate_size": 22}, sizes))
    assert table is not None
    at = "model.layers.0.linear_attn.in_proj_"
    arrays = {f"{at}{name}.weight": array for name, array in given.items()}
    rows, to = table.dialects["megatron"], "decoder.layers.0.self_attention.in_proj.weight"
    parts = ("query", "key", "value", "z", "beta", "alpha")
    made = [carried(rows[f"{to}.{part}"].layout, arrays) for part in parts]
    np.testing.assert_array_equal(np.concatenate(made), read_case(case, "tp1_rank0")["weight"])


def read_case(case: str, file: str) -> dict[str, np.ndarray]:
    return load_arrays(FIXTURES / "mapping_refs" / case / f"{file}.safetensors")

"""Configurations, stored arguments and meshes that do not fit the tensors, or one another."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import torch

import intarsia
from intarsia.family import table_for
from tests.checkpoints import llama_config, model, write_hf
from tests.family.configs import CASES
from tests.refusals.case import refusal

AREA = "configuration"


def _llama(at: Path, **changes: object) -> Path:
    config = llama_config(**changes)
    return write_hf(at, model(config), config, 1)


def _of_table(at: Path, case: str) -> Path:
    table = table_for(CASES[case])
    assert table is not None
    held = {n: torch.zeros(s) for n, s in table.logical.items() if n not in table.tied}
    return write_hf(at, held, CASES[case], 1)


@refusal("A given configuration that contradicts the stored one", area=AREA)
def two_configurations(tmp: Path) -> None:
    given = llama_config(num_attention_heads=8, num_key_value_heads=4, head_dim=3, rope_theta=5e5)
    intarsia.convert(_llama(tmp / "model"), tmp / "out", to="hf", config=given)


@refusal("A configuration that contradicts Megatron's stored arguments", area=AREA)
def against_arguments(tmp: Path) -> None:
    intarsia.convert(_llama(tmp / "model"), tmp / "run", to="torch_dist")
    (tmp / "run" / "config.json").unlink()
    given = llama_config(num_attention_heads=8, num_key_value_heads=4, head_dim=3)
    intarsia.convert(tmp / "run", tmp / "out", to="hf", config=given)


@refusal("Megatron's arguments that no configuration of the family says", area=AREA)
def unsaid(tmp: Path) -> None:
    intarsia.convert(_llama(tmp / "model"), tmp / "run", to="torch_dist")
    (tmp / "run" / "config.json").unlink()
    torch.serialization.add_safe_globals([Namespace])
    file = tmp / "run" / "iter_0000001" / "common.pt"
    state = torch.load(file, weights_only=True)
    state["args"].rotary_interleaved = True
    torch.save(state, file)
    intarsia.convert(tmp / "run", tmp / "out", to="hf")


@refusal("A tied head that differs from the embedding", area=AREA)
def tied(tmp: Path) -> None:
    config = llama_config(tie_word_embeddings=True)
    tensors = model(config)
    head = tensors["model.embed_tokens.weight"] + 1
    write_hf(tmp / "model", tensors | {"lm_head.weight": head}, config, 1)
    intarsia.convert(tmp / "model", tmp / "out", to="torch_dist")


@refusal("A vision-language model without its tower", area=AREA)
def no_tower(tmp: Path) -> None:
    intarsia.convert(_of_table(tmp / "model", "gemma3"), tmp / "out", to="dcp")


@refusal("A Megatron checkpoint without its common state", area=AREA)
def no_common_state(tmp: Path) -> None:
    from tests.checkpoints import write_dcp

    folder = write_dcp(tmp / "run", {"decoder.final_layernorm.weight": torch.ones(4)})
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    intarsia.convert(folder, tmp / "out", to="hf", config=llama_config())


@refusal("A model without a head, as a Megatron checkpoint", area=AREA)
def no_head(tmp: Path) -> None:
    config = llama_config(architectures=["LlamaModel"])
    tensors = {n: t for n, t in model(config).items() if n != "lm_head.weight"}
    intarsia.convert(write_hf(tmp / "model", tensors, config, 1), tmp / "out", to="torch_dist")


@refusal("More expert-parallel ranks than experts", area=AREA)
def too_many_ranks(tmp: Path) -> None:
    intarsia.convert(_of_table(tmp / "model", "mixtral"), tmp / "out", to="dcp", mesh="ep=64")


@refusal("Expert parallelism of a model without experts", area=AREA)
def no_experts(tmp: Path) -> None:
    intarsia.convert(_llama(tmp / "model"), tmp / "out", to="torch_dist", mesh="ep=2")


@refusal("More pipeline stages than layers", area=AREA)
def too_many_stages(tmp: Path) -> None:
    intarsia.convert(_llama(tmp / "model"), tmp / "out", to="dcp", mesh="pp=4")


@refusal("Two statements about which layers have experts", area=AREA)
def layers_with_experts(tmp: Path) -> None:
    table_for(CASES["glm4_moe_lite"] | {"mlp_layer_types": ["sparse", "dense", "sparse"]})

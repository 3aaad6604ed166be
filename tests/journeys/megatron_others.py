"""Models of Megatron-core that no hub family's table describes, saved as `torch_dist`; run in one process.

python -m tests.journeys.megatron_others FOLDER
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.parity.megatron_logits import build

from megatron.core import dist_checkpointing, parallel_state  # isort: skip
from megatron.core.activations import squared_relu
from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.models.T5.t5_spec import (
    get_t5_decoder_with_local_block_spec,
    get_t5_encoder_with_local_block_spec,
)
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

HF = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 48,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000},
    "tie_word_embeddings": True,
}


EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
APART = {"singleton_local_shards": True}


def models() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Each with a name and the arguments that say what it has."""
    yield "llama", build(HF, 64, 1, 1, 1), {"swiglu": True}
    residual = {"apply_residual_connection_post_layernorm": True}
    yield "residual_after_norm", build(HF, 64, 1, 1, 1, **residual), {"swiglu": True} | residual
    mixture = build(HF | EXPERTS, 64, 1, 1, 1)
    yield "experts_apart", mixture, {"swiglu": True, "num_experts": 3, "moe_router_topk": 2}
    centred = build(HF, 64, 1, 1, 1, normalization="LayerNorm")
    yield "layer_norm", centred, {"swiglu": True, "normalization": "LayerNorm"}
    plain = build(HF, 64, 1, 1, 1, gated_linear_unit=False, activation_func=squared_relu)
    yield "squared_relu", plain, {"swiglu": False, "squared_relu": True}
    config = deepcopy(centred.config)
    config.normalization = "RMSNorm"
    config.position_embedding_type = "rope"
    common = {"vocab_size": 64, "max_sequence_length": 16, "position_embedding_type": "rope"}
    bert = BertModel(config, 0, bert_layer_local_spec, add_binary_head=False, **common)
    yield "bert", bert, {"swiglu": True}
    specs = get_t5_encoder_with_local_block_spec(2), get_t5_decoder_with_local_block_spec(2)
    yield "t5", T5Model(config, deepcopy(config), *specs, **common), {"swiglu": True}


def main(folder: str) -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{folder}/meet")
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    for name, model, said in models():
        with torch.no_grad():
            for p in model.parameters():
                p.normal_(std=0.2)
        known = {key: HF[key] for key in ("hidden_size", "num_attention_heads")}
        args = Namespace(
            num_layers=2, vocab_size=64, position_embedding_type="rope", **known, **said
        )
        to = Path(folder, name, "iter_0000003")
        to.mkdir(parents=True)
        parts = model.sharded_state_dict(metadata=APART if name.endswith("apart") else None)
        state = {"model": parts, "args": args, "iteration": 3}
        dist_checkpointing.save(state | {"checkpoint_version": 3.0}, str(to))
        (to.parent / "latest_checkpointed_iteration.txt").write_text("3")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Options for Megatron-LM; its own parser, which is not installed here, took them all and gave the stored values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import intarsia
from intarsia.format.megatron.configuration.command_line import options_to_give
from intarsia.format.megatron.configuration.written_arguments import arguments_for
from intarsia.mesh import Mesh
from tests.checkpoints import write_hf
from tests.family.configs import CASES, DENSE, of
from tests.journeys.test_megatron_configuration import weights

GPT_OSS = of("gpt_oss", DENSE, num_local_experts=3, num_experts_per_tok=2)
GIVEN: list[tuple[dict[str, Any], str]] = [
    (CASES["ernie4_5"], ""),
    (CASES["mistral"], "--norm-epsilon 1e-06 --window-size 4095,0"),
    (CASES["cwm"], "--window-size 8191,0 --window-attn-skip-freq '[0,1,1]' --use-rope-scaling --rope-scaling-factor 16.0"),
    (CASES["deepseek_v2"], "--norm-epsilon 1e-06 --qk-layernorm --multi-latent-attention --q-lora-rank 18 --kv-lora-rank 16"
     " --qk-head-dim 8 --qk-pos-emb-head-dim 4 --v-head-dim 7"),
    (GPT_OSS, "--window-size 127,0 --window-attn-skip-freq '[1,0,1]' --softmax-type learnable --quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7.0"
     " --rotary-scaling-factor 32.0 --yarn-original-max-position-embeddings 4096 --yarn-beta-fast 32.0 --yarn-beta-slow 1.0"
     " --no-yarn-correction-range-round-to-int"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "options"), GIVEN, ids=lambda x: str(x)[:30])
def test_the_options_say_what_the_checkpoints_arguments_do_not(config: Any, options: str) -> None:
    assert options_to_give(arguments_for(config, Mesh(), {}, False)) == options


@pytest.mark.parametrize("to", ["torch_dist", "fsdp_dtensor"])
def test_a_conversion_from_the_hub_gives_them_and_one_of_a_run_does_not(
    tmp_path: Path, to: str
) -> None:
    config = CASES["qwen3"]
    src = write_hf(tmp_path / "hf", weights(config), config, 1)
    first = intarsia.convert(src, tmp_path / "first", to=to)
    assert any(n.endswith("--norm-epsilon 1e-06 --qk-layernorm") for n in first.notes)
    again = intarsia.convert(tmp_path / "first", tmp_path / "again", to=to, mesh="tp=2")
    assert not any("--use-checkpoint-args" in n for n in again.notes)

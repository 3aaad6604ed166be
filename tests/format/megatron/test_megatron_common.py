"""The frame of Megatron's checkpoints: what is not sharded, and what is beside it."""

from __future__ import annotations

import io
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia.errors import FormatError
from intarsia.family import table_for
from intarsia.format.dcp.metadata import Metadata
from intarsia.format.megatron.common import (
    archive,
    arguments_of,
    common_state,
    read_common,
    read_run_config,
    tensor_of_one,
    whole_argument,
)
from intarsia.format.megatron.configuration.written_arguments import arguments_for
from intarsia.format.torch_file.plain import plain
from intarsia.mesh import Mesh
from intarsia.store.reading.folder import Folder
from tests.checkpoints import normal_tensor, write_hf
from tests.family.configs import CASES

NOTHING = Metadata({}, {})


def test_what_is_written_torch_reads() -> None:
    torch.serialization.add_safe_globals([Namespace])
    state = common_state({"num_layers": 4, "swiglu": True}, 7, None)
    found = torch.load(io.BytesIO(archive(state)), weights_only=True)
    assert found == state
    assert vars(found["args"]) == {"num_layers": 4, "swiglu": True}
    assert archive(state) == archive(state)


def test_a_number_is_written_as_the_tensor_that_torch_reads() -> None:
    twice = tensor_of_one(0.1)
    state = [{"scale": tensor_of_one(65536.0), "text": "x"}, twice, ("x", twice)]
    (first, second, (text, third)) = torch.load(io.BytesIO(archive(state)), weights_only=True)
    assert first["text"] == text == "x"
    assert torch.equal(first["scale"], torch.tensor([65536.0]))
    assert torch.equal(second, torch.tensor([0.1]))
    assert torch.equal(third, second)


def test_reading_runs_nothing(tmp_path: Path) -> None:
    class Touch:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "touched",)

    torch.save({"args": Namespace(num_layers=4), "x": Touch()}, tmp_path / "common.pt")
    with Folder(tmp_path) as folder, pytest.raises(FormatError):
        read_common(folder, NOTHING)
    assert not (tmp_path / "touched").exists()


def test_arguments_of_foreign_classes(tmp_path: Path) -> None:
    """Megatron's own enums are among them; what is plain is kept."""
    torch.save({"args": Namespace(num_layers=4, dtype=torch.bfloat16)}, tmp_path / "common.pt")
    with Folder(tmp_path) as folder:
        args = arguments_of(read_common(folder, NOTHING))
    assert whole_argument(args, "num_layers") == 4
    assert plain(args) == {"num_layers": 4}


def test_a_checkpoint_without_common_state(tmp_path: Path) -> None:
    with Folder(tmp_path) as folder:
        with pytest.raises(FormatError, match=r"lacks common\.pt"):
            read_common(folder, NOTHING)
        assert read_run_config(folder) == {}


def test_settings_that_megatron_bridge_leaves(tmp_path: Path) -> None:
    (tmp_path / "run_config.yaml").write_text(
        "checkpoint:\n  num_layers: 1\nmodel:\n  _target_: some.where.Provider\n"
        "  activation_func:\n    _call_: false\n  layernorm_zero_centered_gamma: true\n"
        "  num_layers: 4\n  rotary_base: 1000000.0\n  vocab_size: null\noptimizer:\n  num_layers: 9\n"
    )
    with Folder(tmp_path) as folder:
        found = read_run_config(folder)
    assert found == {
        "_target_": "some.where.Provider",
        "layernorm_zero_centered_gamma": True,
        "num_layers": 4,
        "rotary_base": 1000000.0,
        "vocab_size": None,
    }


def test_arguments_for_a_model() -> None:
    shapes = {
        "embedding.word_embeddings.weight": (64, 24),
        "decoder.layers.self_attention.linear_qkv.bias": (3, 80),
    }
    args = arguments_for(CASES["deepseek_v3"], Mesh(tp=2, ep=4), shapes, False)
    assert (args["kv_lora_rank"], args["qk_head_dim"], args["qk_pos_emb_head_dim"]) == (16, 8, 4)
    assert args["multi_latent_attention"] is True
    assert (args["vocab_size"], args["padded_vocab_size"]) == (50, 64)
    assert args["untie_embeddings_and_output_weights"] is False
    assert args["add_qkv_bias"] is True
    assert (args["tensor_model_parallel_size"], args["expert_model_parallel_size"]) == (2, 4)


@pytest.mark.parametrize("to", ["torch_dist", "fsdp_dtensor"])
@pytest.mark.parametrize(
    ("rank", "spec", "noted"),
    [(None, "te", True), (None, "local", True), (18, "te", False), (18, "local", False)],
)
def test_queries_without_a_norm_that_later_versions_ask_for_are_noted(
    rank: int | None, spec: str, noted: bool, to: str, tmp_path: Path
) -> None:
    """Megatron-core 0.19 and later asks TransformerEngine's layers for it, and refuses its own."""
    config = CASES["deepseek_v3"] | {"q_lora_rank": rank, "num_nextn_predict_layers": 0}
    table = table_for(config)
    assert table is not None
    tensors = {n: normal_tensor(s, torch.bfloat16) for n, s in table.logical.items()}
    hf = write_hf(tmp_path / "hf", tensors, config)
    report = intarsia.convert(hf, tmp_path / "out", to=to, megatron_spec=spec)
    assert any("linear_q_proj.layer_norm_weight" in note for note in report.notes) == noted

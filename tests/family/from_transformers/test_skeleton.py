"""The model that a configuration describes, as the installed Transformers builds it."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import OPTConfig, OPTForCausalLM

import intarsia
from intarsia.family.from_transformers.skeleton import Skeleton
from tests.checkpoints import python
from tests.sweep.types import Type, class_of, tiny_config

SMALL = {
    "vocab_size": 32, "hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 16,
}  # fmt: skip


def test_a_field_with_an_underscore_counts_where_a_type_declares_it(tmp_path: Path) -> None:
    model = OPTForCausalLM(OPTConfig(**SMALL, _remove_final_layer_norm=True))
    model.save_pretrained(tmp_path / "hub")
    found = Skeleton.of(model.config.to_dict()).shapes
    assert found == {name: tuple(x.shape) for name, x in model.state_dict().items()}
    intarsia.convert(tmp_path / "hub", tmp_path / "module", to="hf", dialect="hf-module")
    assert intarsia.verify(tmp_path / "hub", tmp_path / "module")


def test_no_other_field_with_an_underscore_does() -> None:
    config = {**OPTConfig(**SMALL).to_dict(), "_attn_implementation": "somebody/kernel"}
    assert Skeleton.of(config).config._attn_implementation != "somebody/kernel"


def test_a_tensor_of_no_elements_that_has_another_name_is_refused(tmp_path: Path) -> None:
    type_ = Type("hy_v4", "causal")
    config = tiny_config(type_)
    config.n_shared_experts = 0
    class_of(type_)(config).save_pretrained(tmp_path / "hub")
    with pytest.raises(intarsia.IntarsiaError, match="has no elements and another name"):
        intarsia.convert(tmp_path / "hub", tmp_path / "module", to="hf", dialect="hf-module")
    assert not (tmp_path / "module").exists()


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        ("raise OSError('libkernels.so is gone')", "cannot be imported (libkernels.so is gone)"),
        ("import no_such_part", "cannot be imported (No module named 'no_such_part')"),
        ("raise ModuleNotFoundError('none', name='transformers')", "is not installed (none)"),
    ],
)
@pytest.mark.one_in(3)
def test_transformers_that_cannot_be_imported_is_a_note_that_says_why(
    tmp_path: Path, raised: str, text: str
) -> None:
    OPTForCausalLM(OPTConfig(**SMALL)).save_pretrained(tmp_path / "hub")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "transformers.py").write_text(raised)
    code = "import sys, intarsia; sys.path.insert(0, sys.argv[1]); print(intarsia.verify(sys.argv[2]).notes)"
    done = python("-c", code, tmp_path / "broken", tmp_path / "hub")
    assert text in done.stdout.replace("\\", "").replace('"', "'"), done.stderr

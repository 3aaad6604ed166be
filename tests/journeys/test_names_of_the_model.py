"""From what a trainer saves to what Transformers finds by its names, for models that have no table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import get_state_dict
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
)

import intarsia
from intarsia.errors import ForeignNamesError, SectionError
from tests.checkpoints import assert_same, llama_config, read_hf, write_dcp, write_hf
from tests.checkpoints import intarsia as command
from tests.checkpoints import model as model_of


def model(seed: int = 0) -> Ernie4_5_MoeForCausalLM:
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 1, "moe_num_experts": 4, "moe_k": 2,
        "moe_intermediate_size": 8, "moe_layer_start_index": 1, "moe_num_shared_experts": 1,
    }  # fmt: skip
    return Ernie4_5_MoeForCausalLM(Ernie4_5_MoeConfig(**sizes, tie_word_embeddings=False))


@pytest.fixture
def trained() -> tuple[Any, Any]:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    ids = torch.arange(16).reshape(2, 8)
    net(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    return net, optimizer


def written(folder: Path, net: Any) -> Path:
    """The configuration of a model, as it lies beside the training script."""
    net.config.architectures = [type(net).__name__]
    folder.write_text(net.config.to_json_string(use_diff=False))
    return folder


def is_loaded(folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
    again, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert_same(again.state_dict(), weights)


def test_a_section_that_nothing_names_is_asked_for_and_then_loaded(
    tmp_path: Path, trained: tuple[Any, Any]
) -> None:
    net, optimizer = trained
    weights, state = get_state_dict(net, optimizer)
    saved = {"net": {"weights": weights}, "opt": state, "step": torch.tensor(7)}
    src, config = write_dcp(tmp_path / "run", saved), written(tmp_path / "config.json", net)
    words = ("convert", src, tmp_path / "hf", "--to", "hf", "--config", config)
    told = command(*words)
    assert told.status == 2
    assert "convert with --section net.weights" in told.err
    assert not (tmp_path / "hf").exists()
    assert command("plan", *words[1:2], *words[3:]).status == 2
    assert command(*words, "--section", "net.weights").status == 0
    is_loaded(tmp_path / "hf", weights)
    assert command("verify", tmp_path / "hf").status == 0
    assert (
        command(
            "verify", src, tmp_path / "hf", "--config", config, "--section", "net.weights"
        ).status
        == 0
    )
    fresh = model(5)
    intarsia.load(src, into=fresh, strict=False)
    assert_same(fresh.state_dict(), weights)


@pytest.mark.parametrize("beside", [(), ("average",)])
def test_a_key_that_transformers_takes_for_the_word_of_its_base_model_is_noted(
    tmp_path: Path, beside: tuple[str, ...]
) -> None:
    net = model()
    config, weights = written(tmp_path / "config.json", net), net.state_dict()
    every = {"model": net, **{key: model(1) for key in beside}}
    flat = {f"{key}.{n}": x for key, one in every.items() for n, x in one.state_dict().items()}
    intarsia.save(tmp_path / "run", flat)
    words: dict[str, Any] = {"to": "hf", "config": config}
    told = intarsia.convert(tmp_path / "run", tmp_path / "hf", **words).notes
    assert any("before the names of all" in n and "--section model" in n for n in told)
    chosen = intarsia.convert(tmp_path / "run", tmp_path / "own", section="model", **words)
    assert not any("before the names" in note for note in chosen.notes)
    is_loaded(tmp_path / "own", weights)
    assert "lm_head.weight" in load_file(tmp_path / "own" / "model.safetensors")


@pytest.mark.parametrize("word", ["module", "net.module", "generator"])
def test_the_words_of_a_wrapper_and_of_a_second_model_are_refused_until_named(
    tmp_path: Path, trained: tuple[Any, Any], word: str
) -> None:
    net, _ = trained
    weights = net.state_dict()
    tensors = {f"{word}.{name}": x for name, x in weights.items()}
    src = write_dcp(tmp_path / "run", tensors | {"discriminator.0.weight": torch.ones(3, 3)})
    config = json.loads(written(tmp_path / "config.json", net).read_text())
    with pytest.raises(ForeignNamesError) as raised:
        intarsia.convert(src, tmp_path / "hf", to="hf", config=config)
    assert f"--section {word} " in str(raised.value.hint)
    with pytest.raises(ForeignNamesError, match=r"`0\.weight`"):
        intarsia.convert(src, tmp_path / "hf", to="hf", config=config, section="discriminator")
    intarsia.convert(src, tmp_path / "hf", to="hf", config=config, section=word)
    is_loaded(tmp_path / "hf", weights)


def test_of_a_student_and_its_teacher_the_user_chooses(
    tmp_path: Path, trained: tuple[Any, Any]
) -> None:
    net, other = trained[0], model(3)
    src = write_dcp(tmp_path / "run", {"student": net.state_dict(), "teacher": other.state_dict()})
    config = json.loads(written(tmp_path / "config.json", net).read_text())
    with pytest.raises(SectionError, match="2 sections may be the model"):
        intarsia.convert(src, tmp_path / "hf", to="hf", config=config)
    with pytest.raises(ForeignNamesError, match=r"student \(38 tensors\), teacher \("):
        intarsia.convert(src, tmp_path / "hf", to="hf", config=config, section=".")
    intarsia.convert(src, tmp_path / "hf", to="hf", config=config, section="teacher")
    is_loaded(tmp_path / "hf", other.state_dict())


def test_a_folder_that_transformers_finds_nothing_in_is_not_sound(
    tmp_path: Path, trained: tuple[Any, Any]
) -> None:
    net, _ = trained
    net.save_pretrained(tmp_path / "right")
    tensors = read_hf(tmp_path / "right")
    config = json.loads((tmp_path / "right" / "config.json").read_text())
    for prefix in ("net.weights.", "module.", "_orig_mod."):
        wrong = write_hf(tmp_path / prefix, {prefix + n: x for n, x in tensors.items()}, config)
        _, info = AutoModelForCausalLM.from_pretrained(wrong, output_loading_info=True)
        assert len(info["missing_keys"]) == len(net.state_dict())
        for options in ([], ["--section", "net.weights"] if "net" in prefix else []):
            told = command("--json", "verify", wrong, *options)
            assert told.status == 1
            assert [fault["kind"] for fault in told.json["faults"]] == ["names-foreign"]
        intarsia.convert(
            wrong,
            tmp_path / f"{prefix}out",
            to="hf",
            section=None if prefix == "_orig_mod." else prefix.strip("."),
        )
        is_loaded(tmp_path / f"{prefix}out", net.state_dict())
        fresh = model(5)
        intarsia.load(wrong, into=fresh)
        assert_same(fresh.state_dict(), net.state_dict())
        assert intarsia.verify(tmp_path / "right"), "whatever was loaded before"


@pytest.mark.parametrize("word", ["_checkpoint_wrapped_module", "_orig_mod", "module"])
def test_a_folder_of_which_transformers_finds_a_part_is_not_sound(
    tmp_path: Path, word: str
) -> None:
    """Layers that were wrapped one by one, as activation checkpointing and compilation do."""
    config = llama_config()
    tensors = {n.replace("layers.1.", f"layers.1.{word}."): x for n, x in model_of(config).items()}
    wrong = write_hf(tmp_path / "wrong", tensors, config)
    _, info = AutoModelForCausalLM.from_pretrained(wrong, output_loading_info=True)
    (fault,) = intarsia.verify(wrong).faults
    assert fault.kind == "names-foreign"
    assert f"{len(info['missing_keys'])} of {len(tensors)} tensors do not have a name" in fault.text
    intarsia.convert(wrong, tmp_path / "out", to="hf")
    assert intarsia.verify(tmp_path / "out")
    assert_same(read_hf(tmp_path / "out"), model_of(config))


def test_what_was_loaded_before_changes_nothing_of_another_checkpoint_of_the_model(
    tmp_path: Path,
) -> None:
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = BertConfig(**sizes, num_attention_heads=2, max_position_embeddings=16)
    BertForMaskedLM(config).save_pretrained(tmp_path / "new")
    old = shutil.copytree(tmp_path / "new", tmp_path / "old") / "model.safetensors"
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for name, x in load_file(old).items()
    }  # fmt: skip
    tensors["cls.seq_relationship.weight"] = torch.randn(2, 16)
    save_file(tensors, old, {"format": "pt"})
    before = intarsia.digest(tmp_path / "new").root
    intarsia.load(tmp_path / "old", into=BertForMaskedLM(config), strict=False)
    intarsia.convert(tmp_path / "old", tmp_path / "module", to="hf", dialect="hf-module")
    assert intarsia.digest(tmp_path / "new").root == before
    assert intarsia.verify(tmp_path / "new")
    intarsia.convert(tmp_path / "new", tmp_path / "again", to="hf")
    assert intarsia.verify(tmp_path / "new", tmp_path / "again")

"""Which tensors a configuration ties, and which stored one each of them is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

import intarsia
from intarsia.checking.pair.ties import tied_and_absent, tied_in, ties_for_sure
from intarsia.dtypes import BY_NAME
from intarsia.planning.manifest import Logical, Manifest
from tests.checkpoints import llama_config, model, write_hf
from tests.family.configs import CASES

CONFIG = llama_config()
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


def manifest(names: tuple[str, ...], **config: Any) -> Manifest:
    logical = {n: Logical(n, (4, 2), BY_NAME["F32"]) for n in names}
    return Manifest("hf", "nowhere", {}, logical, {}, config=config or None)


def test_without_a_table_the_configuration_ties_the_one_head_to_the_one_table() -> None:
    assert tied_in(manifest((HEAD, TABLE), tie_word_embeddings=True)) == {HEAD: TABLE}
    for held in ((HEAD, TABLE, f"other.{TABLE}"), (HEAD,), (TABLE,)):
        assert tied_in(manifest(held, tie_word_embeddings=True)) == {}


def test_nothing_is_tied_that_the_configuration_does_not_tie() -> None:
    assert tied_in(manifest((HEAD, TABLE))) == {}
    assert tied_in(manifest((HEAD, TABLE), tie_word_embeddings=False)) == {}


def llama(names: tuple[str, ...], tie: bool = True) -> Manifest:
    return manifest(
        names, model_type="llama", hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, vocab_size=4, head_dim=8,
        tie_word_embeddings=tie,
    )  # fmt: skip


def test_a_tied_tensor_that_is_not_stored_is_the_stored_one() -> None:
    (found,) = tied_and_absent(llama((TABLE,))).items()
    assert (found[0], found[1].name) == (HEAD, TABLE)


def test_a_tensor_that_is_tied_to_one_that_is_tied_is_the_stored_one() -> None:
    """DeepSeek's layers for further tokens may hold the head again, which may be the embedding."""
    config = CASES["deepseek_v3"] | {"tie_word_embeddings": True, "num_nextn_predict_layers": 1}
    layer = f"model.layers.{config['num_hidden_layers']}"
    found = tied_and_absent(manifest((TABLE, f"{layer}.enorm.weight"), **config))
    copies = HEAD, f"{layer}.embed_tokens.weight", f"{layer}.shared_head.head.weight"
    assert {name: found[name].name for name in copies} == dict.fromkeys(copies, TABLE)


def test_what_is_stored_or_not_tied_or_has_no_twin_is_no_twin_s() -> None:
    assert tied_and_absent(llama((HEAD, TABLE))) == {}
    assert tied_and_absent(llama((TABLE,), tie=False)) == {}
    assert tied_and_absent(llama(("model.norm.weight",))) == {}


def test_what_a_table_ties_or_the_files_lack_needs_no_second_opinion() -> None:
    both = llama((HEAD, TABLE))
    assert ties_for_sure(both) == tied_in(both) == {HEAD: TABLE}
    assert ties_for_sure(manifest((HEAD, TABLE))) == {}


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_is_tied_or_stored_is_one_model_to_verify_and_digest(
    tied: bool, tmp_path: Path
) -> None:
    weights = model(CONFIG | {"tie_word_embeddings": True})
    a = write_hf(tmp_path / "a", weights, CONFIG | {"tie_word_embeddings": True})
    head = weights["model.embed_tokens.weight"].clone()
    stored = weights | {"lm_head.weight": head}
    b = write_hf(tmp_path / "b", stored, CONFIG | {"tie_word_embeddings": tied})
    assert intarsia.verify(a, b).equal
    assert intarsia.verify(b, a).equal
    assert intarsia.digest(a).root == intarsia.digest(b).root
    head[3, 4] += 1
    c = write_hf(tmp_path / "c", stored, CONFIG | {"tie_word_embeddings": tied})
    for found in (intarsia.verify(a, c), intarsia.verify(c, a)):
        assert not found.equal
        assert [d.tensor for d in found.different] == [HEAD]
        assert [(f.kind, f.tensors) for f in found.faults] == [("tied-differ", (HEAD,))]
    assert intarsia.digest(a).root != intarsia.digest(c).root


def test_a_head_that_is_lost_is_missing_from_either_side(tmp_path: Path) -> None:
    weights = model(CONFIG)
    a = write_hf(tmp_path / "a", weights, CONFIG)
    del weights["lm_head.weight"]
    b = write_hf(tmp_path / "b", weights)
    assert intarsia.verify(a, b).only_in_a == ("lm_head.weight",)
    assert intarsia.verify(b, a).only_in_b == ("lm_head.weight",)


@pytest.mark.parametrize("tied", [True, False])
def test_what_transformers_ties_is_one_tensor_also_where_no_table_says_so(
    tied: bool, tmp_path: Path
) -> None:
    sizes = {"vocab_size": 40, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 12}
    config = GPT2Config(**sizes, tie_word_embeddings=tied)
    config.architectures = ["GPT2LMHeadModel"]
    tensors = dict(GPT2LMHeadModel(config).state_dict())
    head, table = tensors.pop("lm_head.weight"), tensors["transformer.wte.weight"]
    a = write_hf(tmp_path / "a", tensors, config.to_dict())
    b = write_hf(tmp_path / "b", tensors | {"lm_head.weight": head.clone()}, config.to_dict())
    assert torch.equal(head, table) == tied
    for one, other in ((a, b), (b, a)):
        found = intarsia.verify(one, other)
        assert bool(found) == tied
        assert any("`lm_head.weight` is tied" in note for note in found.notes) == tied
    c = write_hf(tmp_path / "c", tensors | {"lm_head.weight": head + 1}, config.to_dict())
    assert not intarsia.verify(a, c)


def test_a_side_that_lacks_a_tensor_says_itself_whether_it_is_tied(tmp_path: Path) -> None:
    sizes = {"vocab_size": 40, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 12}
    tied, untied = (GPT2Config(**sizes, tie_word_embeddings=x) for x in (True, False))
    tied.architectures = untied.architectures = ["GPT2LMHeadModel"]
    tensors = dict(GPT2LMHeadModel(tied).state_dict())
    head = {"lm_head.weight": tensors.pop("lm_head.weight").clone()}
    whole = write_hf(tmp_path / "whole", tensors | head, tied.to_dict())
    lacking = write_hf(tmp_path / "lacking", tensors, untied.to_dict())
    assert intarsia.verify(whole, lacking).only_in_a == ("lm_head.weight",)
    assert intarsia.verify(lacking, whole).only_in_b == ("lm_head.weight",)
    silent = write_hf(tmp_path / "silent", tensors)
    assert intarsia.verify(whole, silent)
    assert intarsia.verify(silent, whole)


def test_a_model_that_transformers_does_not_know_ties_nothing(tmp_path: Path) -> None:
    table, config = {"table": torch.ones(2, 3)}, {"model_type": "nobody"}
    a = write_hf(tmp_path / "a", table | {"head": torch.ones(2, 3)}, config)
    b = write_hf(tmp_path / "b", table, config)
    assert intarsia.verify(a, b).only_in_a == ("head",)


def test_any_one_of_several_tied_tensors_is_the_others(tmp_path: Path) -> None:
    config = T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    config.architectures = ["T5ForConditionalGeneration"]
    tensors = dict(T5ForConditionalGeneration(config).state_dict())
    names = (
        "shared.weight",
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "lm_head.weight",
    )
    bare = {name: x for name, x in tensors.items() if name not in names}
    kept = [
        write_hf(tmp_path / name, bare | {name: tensors[name].clone()}, config.to_dict())
        for name in names
    ]
    assert all(intarsia.verify(kept[0], each) for each in kept)

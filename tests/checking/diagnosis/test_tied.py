"""An output layer that one side ties to the embedding, and the other stores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import intarsia
from intarsia.checking.fault import Fault
from intarsia.checking.kinds import KINDS
from tests.checkpoints import write_hf
from tests.faults.reference import DENSE, Tensors, weights

TIED = {**DENSE, "tie_word_embeddings": True}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def held(path: Path, *both: Tensors, turned: bool) -> Fault:
    """The one fault of a model and another, as A and B or as B and A."""
    names = "ba" if turned else "ab"
    for name, tensors in zip(names, both, strict=True):
        write_hf(path / name, tensors, TIED)
    (fault,) = intarsia.verify(path / "a", path / "b").faults
    return fault


@pytest.mark.parametrize("turned", [False, True], ids=["in B", "in A"])
@pytest.mark.parametrize("factor", [2, None], ids=["scaled", "another"])
def test_an_output_layer_unlike_the_embedding_is_called_untied(
    tmp_path: Path, factor: float | None, turned: bool
) -> None:
    tensors = weights(TIED)
    head = factor * tensors[EMBEDDING] if factor else weights(TIED, seed=1)[EMBEDDING]
    fault = held(tmp_path, tensors, tensors | {HEAD: head}, turned=turned)
    assert fault.kind == "tied-differ"
    assert f"{'A' if turned else 'B'} stores `{HEAD}`" in fault.text


def test_what_transformers_makes_of_both_is_what_the_next_step_says(tmp_path: Path) -> None:
    tensors = weights(TIED)
    held = write_hf(tmp_path / "both", tensors | {HEAD: 2 * tensors[EMBEDDING]}, TIED)
    (fault,) = intarsia.verify(held).faults
    assert fault.kind == "tied-differ"
    assert "Transformers 5 keeps both and ties none" in KINDS[fault.kind].next
    loaded = AutoModelForCausalLM.from_pretrained(held)
    assert torch.equal(loaded.lm_head.weight, 2 * loaded.model.embed_tokens.weight)


@pytest.mark.parametrize("turned", [False, True], ids=["in B", "in A"])
def test_a_change_of_both_is_the_change_of_one(tmp_path: Path, turned: bool) -> None:
    tensors = weights(TIED)
    rough = tensors[EMBEDDING].bfloat16().float()
    fault = held(
        tmp_path, tensors, tensors | {EMBEDDING: rough, HEAD: rough.clone()}, turned=turned
    )
    assert fault.kind == "rounded"


@pytest.mark.parametrize("turned", [False, True], ids=["in B", "in A"])
@pytest.mark.one_in(2)
def test_a_main_weight_compared_with_a_weight_is_tied_to_nothing(
    tmp_path: Path, turned: bool
) -> None:
    tensors, other = weights(TIED), weights(TIED, seed=1)
    masters = {f"optimizer.master.{name}": x for name, x in other.items()}
    for name, held in zip("ba" if turned else "ab", (tensors, tensors | masters), strict=True):
        write_hf(tmp_path / name, held, TIED)
    report = intarsia.verify(tmp_path / "a", tmp_path / "b")
    assert len(report.different) >= len(tensors) - 1
    assert not [d.diagnosis for d in report.different if " ties it" in d.diagnosis]

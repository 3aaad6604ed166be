"""Which parameters a pipeline stage holds."""

from __future__ import annotations

from collections import Counter

import pytest

from intarsia.format.megatron.keys import Key
from intarsia.format.megatron.optimizer.parameter_order import Parameter
from intarsia.format.megatron.optimizer.stages import NumberedParameters
from intarsia.mesh import Rule
from intarsia.value.plain import PLAIN

LAYERS = [f"decoder.layers.{n}.mlp.linear_fc1.weight" for n in range(4)]
WORDS, NORM = "embedding.word_embeddings.weight", "decoder.final_layernorm.weight"
HEAD = "output_layer.weight"


def of(*names: str) -> NumberedParameters:
    return NumberedParameters.of([Parameter(name, (), Rule(), PLAIN) for name in names])


def names(found: list[Parameter]) -> list[str]:
    return [p.name for p in found]


def test_every_name_is_parsed_once_for_all_the_stages_that_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed, parse = Counter[str](), Key.parse
    monkeypatch.setattr(Key, "parse", lambda name: (parsed.update([name]), parse(name))[1])
    model = of(WORDS, *LAYERS, NORM, HEAD)
    assert names(model.of_stage(0, 3, 0, last=False)) == [WORDS, *LAYERS[:3]]
    assert names(model.of_stage(3, 4, 1, last=True)) == [LAYERS[3], NORM, HEAD]
    assert {*parsed.values()} == {1}


def test_the_last_stage_has_a_copy_of_the_embedding_for_a_tied_head() -> None:
    last = of(WORDS, *LAYERS, NORM).of_stage(3, 4, 1, last=True)
    assert names(last) == [LAYERS[3], NORM, HEAD]
    assert [p.copied for p in last] == [False, False, True]

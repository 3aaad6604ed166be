"""Model types that are known to be hard, and (slow) all of them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.sweep.checks import OK, check
from tests.sweep.page import NOT_APPLICABLE
from tests.sweep.results import Results
from tests.sweep.run import sweep
from tests.sweep.types import Type, all_types

HARD = (
    Type("bamba", "causal"),  # infinity in its configuration
    Type("bigbird_pegasus", "causal"),  # a head of its own, though its configuration ties it
    Type("gemma", "causal"),  # a buffer beside a parameter
    Type("glm4_moe_lite", "causal"),  # mlp_layer_types
    Type("gpt_oss", "causal"),
    Type("qwen3_moe", "base"),  # an inner model alone, whose names lack the outer one's word
    Type("gemma3", "base"),
    Type("llama4", "image-text"),  # complex buffers
    Type("paligemma", "image-text"),
    Type("qwen3_next", "causal"),
)


@pytest.mark.parametrize("type_", HARD, ids=str)
@pytest.mark.one_in(12)
def test_a_hard_type_passes_every_check(type_: Type, tmp_path: Path) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    assert {name: said for name, said in check(type_, tmp_path) if said != OK} == {}


VARIANTS = [Type(t.name, t.kind, seed) for t in HARD for seed in (1, 2, 3)]


@pytest.mark.parametrize("type_", VARIANTS, ids=str)
@pytest.mark.one_in(32)
def test_a_random_configuration_of_a_hard_type_passes_every_check(
    type_: Type, tmp_path: Path
) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    found = dict(check(type_, tmp_path))
    assert {
        k: said for k, said in found.items() if said != OK and not said.startswith("n/a: ")
    } == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_type_passes_every_check_that_transformers_can_do(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    sweep(all_types(), results, jobs=2)
    assert {str(t): faults for t in all_types() if (faults := results.faults(t))} == {}
    failing = [t for t in all_types() if results.found[t]["build"].startswith(NOT_APPLICABLE)]
    assert len(failing) < 20

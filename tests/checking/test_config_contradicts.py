"""A checkpoint that holds more than its configuration counts is not passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import intarsia
from intarsia.errors import FamilyError
from tests.checking.tabled import tabled
from tests.checkpoints import llama_config, model, write_hf
from tests.family.configs import CASES
from tests.faults.sound import FORMATS, convert, weights, write


def configured(folder: Path, **changes: Any) -> Path:
    where = next(folder.rglob("config.json"))
    where.write_text(json.dumps(json.loads(where.read_text()) | changes))
    for digests in folder.rglob("intarsia-digests.json"):
        digests.unlink()
    return folder


@pytest.mark.parametrize("format", FORMATS)
def test_layers_beyond_the_configuration_are_told(format: str, tmp_path: Path) -> None:
    folder = convert(write(weights(1), tmp_path / "hub"), format, tmp_path / "out")
    report = intarsia.verify(configured(folder, num_hidden_layers=3))
    assert {f.kind for f in report.faults} == {"config-contradicts"}, report
    assert any("3" in fault.text for fault in report.faults)


def test_a_stack_of_more_layers_than_configured_is_never_cut_short(tmp_path: Path) -> None:
    folder = convert(write(weights(1), tmp_path / "hub"), "torch_dist", tmp_path / "out")
    configured(folder, num_hidden_layers=3)
    with pytest.raises(FamilyError, match="num_layers is 4"):
        intarsia.open(folder)


def test_wrong_shapes_of_one_kind_are_one_fault(tmp_path: Path) -> None:
    folder = convert(write(weights(1), tmp_path / "hub"), "hf", tmp_path / "out")
    report = intarsia.verify(configured(folder, moe_intermediate_size=16))
    assert [f.kind for f in report.faults] == ["shape-wrong"] * 3
    assert sorted(len(f.tensors) for f in report.faults) == [16, 16, 16]
    assert all("and 15 more like it" in f.text for f in report.faults)
    assert not any("absent or damaged" in note for note in report.notes), "they were read"


def test_a_layer_that_predicts_further_tokens_may_go_uncounted(tmp_path: Path) -> None:
    config = CASES["deepseek_v3"] | {"num_nextn_predict_layers": 1}
    tensors = tabled(config)
    report = intarsia.verify(write_hf(tmp_path, tensors, config | {"num_nextn_predict_layers": 0}))
    assert report.sound, report


def test_what_no_table_knows_is_no_contradiction(tmp_path: Path) -> None:
    config = llama_config()
    tensors = {n: x * 0.05 for n, x in model(config).items()}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = tensors["model.norm.weight"].clone()
    assert intarsia.verify(write_hf(tmp_path, tensors, config)).sound

"""Padding rows that a training touched are not carried, and that is reported with numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia.format import registry as formats
from intarsia.opened.padding import trained_padding
from intarsia.run.budget import Budget
from tests.checkpoints import intarsia as command
from tests.checkpoints import llama_config, model, read_dcp, write_dcp, write_hf
from tests.fixtures import fixture

CONFIG = llama_config(num_hidden_layers=1, vocab_size=40)


def megatron_fsdp(path: Path, rows: int, **filled: float) -> Path:
    """A checkpoint of Megatron-FSDP whose vocabulary is padded; `filled` are rows of it by name."""
    source = write_hf(path / "hf", model(CONFIG, torch.float32), CONFIG)
    intarsia.convert(source, path / "plain", to="fsdp_dtensor")
    state: dict[str, Any] = dict(read_dcp(next((path / "plain").glob("iter_*"))))
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        key = next(k for k in state if k.endswith(name))
        more = torch.zeros(rows, 20)
        for row, value in filled.items():
            if name.startswith("embedding"):
                more[int(row[1:])] = value
        state[key] = torch.cat([state[key], more])
    return write_dcp(path / "padded", state)


def test_rows_that_hold_numbers_are_counted(tmp_path: Path) -> None:
    padded = megatron_fsdp(tmp_path, 24, r3=0.5, r7=-1.0, r9=-0.0)
    report = intarsia.convert(padded, tmp_path / "out", to="torch_dist", config=CONFIG)
    (found,) = report.padding
    assert (found.rows, found.trained, found.elements) == (24, 2, 40)
    assert found.tensor.endswith("word_embeddings.weight")
    assert report.as_json()["padding"] == [found.as_json()]
    assert "2 of 24 padding rows of" in str(report)
    compared = intarsia.verify(padded, tmp_path / "out", config=CONFIG)
    assert compared
    (note,) = [x for x in compared.notes if "padding" in x]
    assert note.startswith("not compared: 24 padding rows of")
    assert "in A, 2 of which hold numbers (40 elements" in note


def test_padding_of_zeros_is_not_worth_a_word(tmp_path: Path) -> None:
    padded = megatron_fsdp(tmp_path, 24)
    report = intarsia.convert(padded, tmp_path / "out", to="torch_dist", config=CONFIG)
    assert not report.padding
    assert "padding rows" not in str(report)
    assert not any("padding" in x for x in intarsia.verify(padded, tmp_path / "out").notes)


def test_megatrons_own_padding_is_counted_by_parameter_and_state(tmp_path: Path) -> None:
    root = fixture("megatron")
    for case in sorted(root.glob("td_*")):
        manifest = formats.read_manifest(case, case / "hf_truth" / "config.json")
        padded = [s for s in manifest.stored.values() if s.layout.mapped < s.layout.size]
        found = trained_padding(manifest, Budget.of(None, None))
        assert {x.tensor for x in found} <= {s.key or s.name for s in padded}


def test_state_that_is_dropped_is_not_reported(tmp_path: Path) -> None:
    padded = megatron_fsdp(tmp_path, 8, r0=1.0)
    answer = command(
        "--json", "convert", padded, tmp_path / "out", "--to", "hf", "--config",
        tmp_path / "hf" / "config.json", "--optimizer", "drop",
    )  # fmt: skip
    assert [x["trained"] for x in answer.json["padding"]] == [1]


@pytest.mark.parametrize("to", ["hf", "dcp", "torch_dist"])
@pytest.mark.one_in(2)
def test_a_rank_whose_buckets_hold_padding_alone_adds_no_tensor(to: str, tmp_path: Path) -> None:
    case = fixture("megatron", "td_dense_tp2pp2_dpresh")
    whole = json.loads((case / "hf_truth" / "config.json").read_text())
    fewer = whole | {"vocab_size": 37}  # the rows of the second rank begin at 50
    intarsia.convert(case, tmp_path / "out", to=to, config=fewer)
    with intarsia.open(case, config=whole) as source, intarsia.open(tmp_path / "out") as found:
        assert {*found} == {*source}
        for name in source:
            words = name.endswith(("embed_tokens.weight", "lm_head.weight"))
            want = source[name][...]
            want = want[:37] if words and want.ndim else want
            assert torch.equal(found[name][...], want), name
    assert intarsia.verify(case, tmp_path / "out", config=fewer)

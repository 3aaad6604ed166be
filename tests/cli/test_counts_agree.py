"""What `verify A B` counts is the same in its text, its JSON and its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from tests.checkpoints import intarsia, llama_config, model, write_hf
from tests.report.test_page import Seen

CONFIG = llama_config()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    tensors = model(CONFIG, torch.float32)
    changed = dict(tensors)
    changed["lm_head.weight"] = tensors["lm_head.weight"].flip(0)
    for layer in range(3):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        changed[name] = tensors[name] * 2
    changed["model.norm.weight"] = tensors["model.norm.weight"].clone()
    changed["model.norm.weight"][3] += 1
    del changed["model.layers.1.input_layernorm.weight"]
    return write_hf(root / "a", tensors, CONFIG), write_hf(root / "b", changed, CONFIG)


def test_counts_agree_between_text_json_and_page(pair: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    said = intarsia("--json", "verify", *pair).json
    text = intarsia("verify", *pair, "--html", page).out
    seen = Seen(page.read_text())
    count = len(said["different"])
    assert f"different: {count:,} of {said['compared']:,} tensors" in text
    shown = page.read_text()
    assert f"{count:,} tensors different; 1 only in A" in shown
    assert f"{said['compared']:,} tensors, {said['elements']:,} elements" in shown
    data = next(json.loads(x) for x in seen.text["script"] if x.startswith("{"))
    assert len(data["said"]) == count
    for d, (elements, first, gap, diagnosis) in zip(
        said["different"], data["said"].values(), strict=True
    ):
        assert (elements, first, diagnosis) == (d["elements"], d["first"], d["diagnosis"])
        assert gap == f"{d['max_abs']:.4g}"
    assert [f[:2] for f in data["faults"]] == [[f["kind"], f["text"]] for f in said["faults"]]
    for f in said["faults"]:
        assert f"{f['kind']}: {f['text']}" in text
        told = re.search(r"explains [\d,]+ of ([\d,]+) differing", f["text"])
        if told:
            assert int(told[1].replace(",", "")) == f["elements"]
    total = sum(d["elements"] for d in said["different"])
    assert sum(f["elements"] for f in said["faults"]) == total

"""Names that are missing because others stand in their place: which these are, and why, is said in a pair, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

import intarsia
from tests.checkpoints import write_hf
from tests.quantised.models import llama


def other_name(path: Path) -> None:
    metadata = path / "iter_0000001" / ".metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b"layers.1.mlp.linear_fc2", b"layers.1.mlp.linear_fcX"))  # fmt: skip


def other_model(path: Path) -> None:
    config = path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "x"}))


@pytest.mark.parametrize(
    ("change", "count", "note"),
    [
        (other_name, 1, "not in the table of llama, carried name by name: model.module.decoder"),
        (other_model, 17, "model_type 'x' has no table: tensors are read under the names"),
    ],
)
def test_names_that_a_model_has_not_are_named_with_the_cause(
    tmp_path: Path, change: Callable[[Path], None], count: int, note: str
) -> None:
    tensors, config = llama()
    hf = write_hf(tmp_path / "hf", tensors, config)
    intarsia.convert(hf, tmp_path / "a", to="fsdp_dtensor")
    assert not intarsia.verify(hf, tmp_path / "a").notes
    change(copytree(tmp_path / "a", tmp_path / "b"))
    b = tmp_path / "b"
    for pair, side, other in (((hf, b), "B", "A"), ((tmp_path / "a", b), "B", "A"), ((b, hf), "A", "B")):  # fmt: skip
        report = intarsia.verify(*pair)
        texts = [fault.text for fault in report.faults]
        assert any(f"missing in {other}: {count} tensor" in t and ", which a llama has not: " in t for t in texts)  # fmt: skip
        assert any(t.startswith(f"missing in {side}") and "has not" not in t for t in texts)
        assert any(n.startswith(f"{side}: {note}") for n in report.notes)


def test_tensors_of_the_model_that_are_missing_are_no_foreign_ones(tmp_path: Path) -> None:
    tensors, config = llama()
    a = write_hf(tmp_path / "a", {n: t for n, t in tensors.items() if ".0.mlp" not in n}, config)
    b = write_hf(tmp_path / "b", {n: t for n, t in tensors.items() if ".1.mlp" not in n}, config)
    report = intarsia.verify(a, b)
    assert not any("has not" in fault.text for fault in report.faults)
    assert not report.notes

"""A diagnosis says what it has checked, and no more; every kind that it may name is documented."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.checking.pair.comparison import Comparison
from tests.checkpoints import intarsia as command
from tests.checkpoints import write_hf
from tests.faults.reference import DENSE, Tensors, weights, write

ROOT = Path(__file__).parents[3]
SIX = DENSE | {"num_hidden_layers": 6}


def held(tmp_path: Path, change: Callable[[Tensors], Tensors], format: str = "hf") -> Comparison:
    sound = weights(SIX)
    a = write(tmp_path / "a", sound, SIX, format)
    b = write(tmp_path / "b", sound | change({n: x.clone() for n, x in sound.items()}), SIX, format)
    return intarsia.verify(a, b)


def layers(order: list[int]) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        out = {}
        for to, source in enumerate(order):
            for name in tensors:
                if name.startswith(f"model.layers.{to}."):
                    out[name] = tensors[name.replace(f"layers.{to}.", f"layers.{source}.")].clone()
        return out

    return change


@pytest.mark.parametrize(
    ("order", "kind", "told"),
    [
        ([0, 4, 2, 3, 1, 5], "layers-permuted", "1 holds 4, 4 holds 1"),
        ([0, 1, 3, 3, 4, 5], "layers-duplicated", "2 holds 3"),
        ([0, 1, 1, 2, 3, 4], "layers-shifted", "shifted by 1 from layer 2 on"),
        ([5, 0, 1, 2, 3, 4], "layers-shifted", "shifted by 1 around the end"),
        ([0, 1, 1, 2, 4, 5], "layers-duplicated", "2 holds 1, 3 holds 2"),
    ],
)
def test_layers_are_shifted_only_if_every_one_is(
    order: list[int], kind: str, told: str, tmp_path: Path
) -> None:
    found = held(tmp_path, layers(order))
    (fault,) = found.faults
    assert (fault.kind, {d.kind for d in found.different}) == (kind, {kind})
    assert told in fault.text


@pytest.mark.parametrize("format", ["hf", "dcp", "torch_dist"])
def test_no_rank_is_told_that_the_files_do_not_have(format: str, tmp_path: Path) -> None:
    name = "model.layers.2.mlp.up_proj.weight"

    def one_row(tensors: Tensors) -> Tensors:
        tensors[name][3] += 1
        return {name: tensors[name]}

    found = held(tmp_path, one_row, format)
    (difference,), (fault,) = found.different, found.faults
    assert (difference.kind, fault.kind) == ("unexplained", "unexplained")
    assert "row 3" in difference.diagnosis
    said = json.dumps(found.as_json())
    assert "tp rank" not in said
    assert "tp=" not in said


def test_text_json_and_page_count_alike(tmp_path: Path) -> None:
    found = held(tmp_path, layers([0, 4, 2, 3, 1, 5]))
    page = tmp_path / "page.html"
    a, b = tmp_path / "a", tmp_path / "b"
    told = command("verify", a, b, "--json", "--html", page).json
    (fault,) = told["faults"]
    wrong = sum(d["elements"] for d in told["different"])
    assert fault["elements"] == wrong
    assert f"explains {wrong:,} of {wrong:,}" in fault["text"]
    text = " ".join(command("verify", a, b).out.split())
    assert f"different: {len(told['different'])} of {told['compared']} tensors" in text
    assert f"{len(told['different'])} tensors different" in page.read_text()
    assert len(found.different) == len(told["different"])


def test_a_gate_that_holds_up_is_no_swap(tmp_path: Path) -> None:
    gate, up = (f"model.layers.1.mlp.{x}_proj.weight" for x in ("gate", "up"))
    found = held(tmp_path, lambda tensors: {gate: tensors[up].clone()})
    (fault,) = found.faults
    assert fault.kind == "tensors-swapped"
    assert "gate_proj holds the values of up_proj in B" in fault.text


def test_every_kind_of_difference_is_documented() -> None:
    """Kinds are the first words of hypotheses and orders, and the second of findings and faults."""
    page = (ROOT / "docs" / "how-to" / "read-a-diagnosis.md").read_text()
    at = {"Hypothesis": 0, "Order": 0, "Fault": 0, "Finding": 1, "_placed": 1, "found": 0}
    kinds: dict[str, str] = {}
    for file in (ROOT / "src/intarsia/checking/diagnosis").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in at
            ):
                args = node.args[at[node.func.id] :]
                if args and isinstance(args[0], ast.Constant) and args[0].value:
                    kinds[str(args[0].value)] = file.name
            if isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant):
                word = node.elts[0].value
                if isinstance(word, str) and word.endswith(
                    (
                        "-swapped",
                        "-interleaved",
                        "-permuted",
                        "-shifted",
                        "-duplicated",
                        "-missing",
                        "-moved",
                    )
                ):
                    kinds[word] = file.name
    assert len(kinds) > 20
    assert not {kind: file for kind, file in kinds.items() if f"`{kind}`" not in page}
    for word in ("layers-moved", "experts-moved"):
        assert word not in kinds


def test_a_table_of_other_names_is_no_checkpoint_of_layers(tmp_path: Path) -> None:
    """Layers under any name are told by their numbers."""
    names = [f"visual.resblocks.{k}.{leaf}.weight" for k in range(4) for leaf in ("attn", "fc")]
    random = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(16, 16, generator=random) for n in names}
    swapped = dict(tensors)
    for leaf in ("attn", "fc"):
        one, other = (f"visual.resblocks.{k}.{leaf}.weight" for k in (0, 3))
        swapped[one], swapped[other] = tensors[other].clone(), tensors[one].clone()
    a, b = write_hf(tmp_path / "a", tensors), write_hf(tmp_path / "b", swapped)
    (fault,) = intarsia.verify(a, b).faults
    assert (fault.kind, "0 holds 3, 3 holds 0" in fault.text) == ("layers-permuted", True)

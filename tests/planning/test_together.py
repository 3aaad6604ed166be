"""Tensors whose elements lie in turn in the source move together: each byte is read once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.dtypes import BY_NAME
from intarsia.family import table_for
from intarsia.family.verbs import gated, interleaved, stacked, then, transposed
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored, Target
from intarsia.planning.planner import Costs
from intarsia.planning.proof import Proven, prover_of
from intarsia.planning.together import partners, windows_together
from intarsia.run import execute
from intarsia.run.budget import Budget
from tests.checkpoints import random_tensor, write_hf
from tests.family.configs import DENSE, of

BF16 = BY_NAME["BF16"]
ROWS, COLUMNS, EXPERTS = 96, 10, 3


def in_turn(fused: bool) -> list[Proven]:
    """The gates and ups of three experts that the source keeps in turn, wanted one by one or in pairs."""
    parts = [
        Layout.of(f"{e}.{part}", (ROWS, COLUMNS)) for e in range(EXPERTS) for part in ("gate", "up")
    ]
    layout = stacked(then(interleaved, transposed), 2)(*parts)
    chunk = Chunk(Box.whole(layout.shape), "file", 100, layout.size * 2)
    stored = {"both": Stored("both", BF16, layout, (chunk,), key="both")}
    logical = {x.tensors[0]: Logical(x.tensors[0], x.shape, BF16) for x in parts}
    src = Manifest("hf", "/here", stored, logical, {"file": 1 << 20})
    wanted = [gated(*parts[k : k + 2]) for k in range(0, len(parts), 2)] if fused else parts
    targets = [Target(f"t{k}", BF16, x, (Box.whole(x.shape),)) for k, x in enumerate(wanted)]
    return [prover_of(src).prove(target) for target in targets]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("limit", [1, 20, 44, 800, 3333, 10_000])
def test_windows_hold_each_element_once_and_keep_to_the_limit(fused: bool, limit: int) -> None:
    proofs = in_turn(fused)
    seen: Counter[tuple[str, int]] = Counter()
    for group in partners(proofs):
        for windows in windows_together(group, limit):
            assert sum(box.size * 2 for _, box in windows) <= max(limit, 2)
            for proven, box in windows:
                places = np.arange(proven.target.layout.size).reshape(proven.target.shape)
                index = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))
                seen.update((proven.target.name, k) for k in places[index].ravel().tolist())
    assert seen == Counter((p.target.name, k) for p in proofs for k in range(p.target.layout.size))


@pytest.mark.parametrize("fused", [True, False])
def test_bytes_that_lie_in_turn_are_read_once(fused: bool) -> None:
    proofs = in_turn(fused)
    costs = [Costs(960).of(group) for group in partners(proofs)]
    assert len(costs) == EXPERTS
    assert sum(c.read_bytes for c in costs) == sum(c.needed_bytes for c in costs)


@pytest.mark.parametrize("window_bytes", [1 << 20, 14_000])
def test_a_conversion_reads_what_its_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    """Also where a step holds many windows, and what some of them share is read for all of them."""
    monkeypatch.setattr(Budget, "window_bytes", property(lambda _: window_bytes))
    monkeypatch.setattr(Budget, "step_bytes", property(lambda _: 1 << 20))
    read: list[int] = []
    gather = execute.gather
    monkeypatch.setattr(execute, "gather", lambda *a: read.append(gather(*a)))
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    config = of("gpt_oss", DENSE | sizes, num_local_experts=3, num_experts_per_tok=2)
    rows = table_for(config).dialects["hf"]  # type: ignore[union-attr]
    shapes = {name: rows[name].layout.shape for name in rows}
    tensors = {
        name: random_tensor(x, torch.bfloat16, k) for k, (name, x) in enumerate(shapes.items())
    }
    write_hf(tmp_path / "a", tensors, config)
    plan = intarsia.plan(tmp_path / "a", to="torch_dist")
    intarsia.convert(tmp_path / "a", tmp_path / "b", to="torch_dist")
    assert sum(read) == pytest.approx(plan.read_bytes, rel=0.001)
    assert plan.read_amplification < (1.01 if window_bytes == 1 << 20 else 1.3)
    assert intarsia.verify(tmp_path / "a", tmp_path / "b")

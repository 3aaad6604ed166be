"""The order of a rank's parameters is that of the modules, whatever order a checkpoint lists its tensors in."""

from __future__ import annotations

import pytest

from intarsia.family import table_for
from intarsia.format.megatron.keys import DIALECTS, torch_dist_rows
from intarsia.format.megatron.optimizer.parameter_order import Spec, parameters_in_memory
from tests.family.configs import CASES


@pytest.mark.parametrize("case", CASES)
def test_the_order_is_the_same_however_tensors_are_listed(case: str) -> None:
    table = table_for(CASES[case])
    assert table is not None
    for spec in DIALECTS if table.dialects["megatron"] else ():
        rows = [r for r in torch_dist_rows(table, spec) if not table.is_beside_the_text(r.name)]
        for grouped in (False, True):
            kind = Spec(spec == "local", grouped)
            listed = ([p.name for p in parameters_in_memory(x, kind)] for x in (rows, rows[::-1]))
            assert next(listed) == next(listed)


def test_a_norm_after_a_projection_follows_its_weight() -> None:
    table = table_for(CASES["gemma2"])
    assert table is not None
    names = [p.name for p in parameters_in_memory(torch_dist_rows(table), Spec(False, False))]
    at = names.index("decoder.layers.0.self_attention.linear_proj.weight")
    assert names[at + 1] == "decoder.layers.0.self_attention.linear_proj.post_layernorm.weight"

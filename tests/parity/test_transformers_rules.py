"""Transformers' conversion rules as layouts, against Transformers itself and our own tables.

Every check runs on arrays of element ids, so that a single misplaced element shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intarsia.errors import FamilyError
from intarsia.family import table_for
from intarsia.family.from_transformers import rules
from intarsia.family.from_transformers.skeleton import Skeleton
from intarsia.layout import cover
from tests.family.arrays import carried, element_ids
from tests.family.configs import CASES, DENSE, EXPERTS, LEFT_OUT, SIGLIP, VISION, of, wrapped
from tests.family.models import save

OTHERS = {
    "phi3": of("phi3", DENSE),
    "olmoe": of("olmoe", DENSE, num_experts=3, num_experts_per_tok=2),
    "ernie4_5_moe": of(
        "ernie4_5_moe", DENSE, moe_num_experts=4, moe_k=2, moe_intermediate_size=14,
        moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_end_index=2,
    ),
    "ernie4_5_vl_moe": wrapped(
        "ernie4_5_vl_moe",
        {"depth": 1, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 8},
        of(
            "ernie4_5_vl_moe_text", DENSE, num_hidden_layers=2, moe_num_experts=3, moe_k=2,
            moe_intermediate_size=[14, 10], moe_num_shared_experts=1, mlp_layer_types=["dense", "sparse"],
            head_dim=LEFT_OUT, rope_parameters={
                "rope_theta": 500000.0, "rope_type": "default", "mrope_section": [1, 1, 1],
            },
        ),
    ),
    "granitemoe": of("granitemoe", DENSE, num_local_experts=3, num_experts_per_tok=2),
    "jamba": of(
        "jamba", DENSE, num_hidden_layers=2, num_experts=2, attn_layer_period=2,
        attn_layer_offset=1, mamba_d_state=4, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=3,
        use_mamba_kernels=False,
    ),
    "llava": wrapped(
        "llava", {**SIGLIP, "model_type": "siglip_vision_model"}, of("llama", DENSE)
    ),
    "gpt2": {"model_type": "gpt2", "n_embd": 12, "n_layer": 2, "n_head": 2, "vocab_size": 33},
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_rules_make_the_module_of_the_file(case: str, tmp_path: Path) -> None:
    saved = save(OTHERS[case], tmp_path)
    shapes = {name: a.shape for name, a in saved.disk.items()}
    rows = rules.module_rows(saved.config, shapes)
    assert set(rows) == set(saved.module)
    for name, layout in rows.items():
        np.testing.assert_array_equal(carried(layout, saved.disk), saved.module[name], name)


@pytest.mark.parametrize("case", OTHERS)
def test_shapes_on_disk_are_what_save_pretrained_writes(case: str, tmp_path: Path) -> None:
    saved = save(OTHERS[case], tmp_path)
    wanted = {name: a.shape for name, a in saved.disk.items()}
    assert rules.shapes_on_disk(Skeleton.of(saved.config)) == wanted


@pytest.mark.parametrize("case", OTHERS)
def test_rules_lose_and_repeat_nothing(case: str) -> None:
    table = rules.table_by_rules(OTHERS[case])
    rows = [row.layout for row in table.dialects["hf-module"].values()]
    for name, row in table.dialects["hf"].items():
        held = [x for x in rows if name in x.tensors]
        assert cover(row.layout, held[:1] if len(held) > 1 and held[0] == held[1] else held).exact


@pytest.mark.parametrize("case", CASES)
def test_our_tables_agree_with_the_rules(case: str) -> None:
    config = CASES[case]
    table = table_for(config)
    assert table is not None
    ids = element_ids(table.logical)
    for name, twin in table.tied.items():
        ids[name] = ids[twin]
    disk = table.dialects["hf"]
    present = [n for n in disk if not table.optional.issuperset(disk.operands(n))]
    stored = {name: disk[name].layout.shape for name in present}
    theirs = rules.module_rows(config, stored)
    ours = table.dialects["hf-module"]
    assert set(ours) == {n for n in theirs if n in ours}
    on_disk = {name: carried(disk[name].layout, ids) for name in present}
    for name, row in ours.items():
        np.testing.assert_array_equal(
            carried(theirs[name], on_disk), carried(row.layout, ids), err_msg=name
        )


def test_fused_experts_on_disk_pass_through() -> None:
    config = of("qwen3_moe", DENSE, EXPERTS)
    table = table_for(config)
    assert table is not None
    fused = {n: row.layout.shape for n, row in table.dialects["hf-fused"].items()}
    theirs = rules.module_rows(config, fused)
    assert {n: x.shape for n, x in theirs.items()} == fused
    assert all(x.tensors == (n,) for n, x in theirs.items())


VL_EXPERTS = {
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 14,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def test_a_transposed_file_is_told_by_its_shape() -> None:
    config = wrapped("qwen3_vl_moe", VISION, of("qwen3_vl_moe_text", DENSE, VL_EXPERTS))
    shapes = rules.shapes_on_disk(Skeleton.of(config))
    name = "model.language_model.layers.0.mlp.experts.gate_up_proj"
    plain = rules.module_rows(config, shapes)[name]
    assert plain.shape == shapes[name] == (3, 28, 24)
    turned = rules.module_rows(config, {**shapes, name: (3, 24, 28)})[name]
    ids = {name: np.arange(3 * 24 * 28).reshape(3, 24, 28)}
    np.testing.assert_array_equal(carried(turned, ids), ids[name].swapaxes(1, 2))


def test_a_square_file_that_could_be_transposed_is_refused() -> None:
    square = {**VL_EXPERTS, "moe_intermediate_size": 12}
    config = wrapped("qwen3_vl_moe", VISION, of("qwen3_vl_moe_text", DENSE, square))
    name = "model.language_model.layers.0.mlp.experts.gate_up_proj"
    with pytest.raises(FamilyError, match="square"):
        rules.module_rows(config, {name: (3, 24, 24)})


def test_unknown_operation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(rules.OPERATIONS, "MergeModulelist")
    with pytest.raises(FamilyError, match="MergeModulelist"):
        rules.module_rows(*_expert_file())


def test_shape_that_the_model_has_not_is_refused() -> None:
    config, stored = _expert_file()
    stored["model.norm.weight"] = (7,)
    with pytest.raises(FamilyError, match=r"model\.norm\.weight.*\[7\].*\[24\]"):
        rules.module_rows(config, stored)


def test_unknown_model_type_is_refused() -> None:
    with pytest.raises(FamilyError, match="no_such_type"):
        rules.module_rows({"model_type": "no_such_type"}, {})


def _expert_file() -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    config = of("qwen3_moe", DENSE, EXPERTS)
    table = table_for(config)
    assert table is not None
    return config, {n: row.layout.shape for n, row in table.dialects["hf"].items()}


@pytest.mark.slow
def test_rules_of_every_causal_type_hold_every_tensor() -> None:
    import transformers
    from transformers import conversion_mapping

    transformers.logging.set_verbosity_error()
    causal = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    tried = 0
    for model_type in causal:
        if not conversion_mapping.get_checkpoint_conversion_mapping(model_type):
            continue
        config: dict[str, Any] = {"model_type": model_type}
        try:
            skeleton = Skeleton.of(config)
        except (FamilyError, AssertionError):
            continue  # its default configuration builds no model
        stored = rules.shapes_on_disk(skeleton)
        rows = rules.rows_of_skeleton(skeleton, stored)
        assert set(rows) == set(skeleton.shapes), model_type
        assert {n for x in rows.values() for n in x.tensors} == set(stored), model_type
        tried += 1
    assert tried > 20


def test_two_tensors_of_a_file_that_are_one_of_the_module_are_refused() -> None:
    """Transformers takes one of them, whichever sorts first, and says nothing of the other."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
    bert = {"model_type": "bert", "intermediate_size": 20, **sizes}
    norm, renamed = (f"bert.embeddings.LayerNorm.{word}" for word in ("weight", "gamma"))
    shapes = rules.shapes_on_disk(Skeleton.of(bert))
    old = {renamed if name == norm else name: shape for name, shape in shapes.items()}
    assert rules.module_rows(bert, old)[norm].tensors == (renamed,)
    with pytest.raises(FamilyError, match=f"2 tensors are `{norm}`: {renamed}, {norm}"):
        rules.module_rows(bert, old | {norm: (16,)})


def test_experts_that_are_stored_twice_are_refused() -> None:
    config, shapes = _expert_file()
    fused = "model.layers.0.mlp.experts.gate_up_proj"
    assert rules.module_rows(config, shapes)[fused].shape == (3, 28, 24)
    with pytest.raises(FamilyError, match=f"7 tensors are `{fused}`"):
        rules.module_rows(config, shapes | {fused: (3, 28, 24)})


def test_experts_with_a_number_left_out_are_not_moved_up() -> None:
    config, shapes = _expert_file()
    moved = {name.replace(".experts.1.", ".experts.3."): shape for name, shape in shapes.items()}
    with pytest.raises(FamilyError, match=r"numbers 0, 2, 3, expected 0 to 2"):
        rules.module_rows(config, moved)

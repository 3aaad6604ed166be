"""What the code of the installed Transformers that all families share reads of a configuration."""

from __future__ import annotations

import ast

import pytest

from intarsia.format.megatron.configuration.argument_table import YARN
from intarsia.format.megatron.configuration.config_to_arguments import LLAMA3
from tests.parity.test_fields_that_transformers_heeds import MODELS, read_by_modelling

OF_SHARED_CODE = {
    "masking_utils": {
        "_attn_implementation", "attention_chunk_size", "get_text_config", "is_causal", "layer_types", "sliding_window",
    },
    "modeling_rope_utils": {
        "head_dim", "hidden_size", "max_position_embeddings", "num_attention_heads", "per_layer_config",
        "rope_parameters", "standardize_rope_params", "validate_rope",
    },
    "integrations/moe": {"_experts_implementation"},
    "integrations/sdpa_attention": set[str](),
    "utils/generic": {"_attn_implementation", "is_causal", "return_dict"},
}  # fmt: skip
"""What each file that families share reads: nothing that the families' own files do not, but `is_causal`."""


@pytest.mark.parametrize("file", OF_SHARED_CODE)
def test_the_code_that_families_share_reads_no_other_field(file: str) -> None:
    tree = ast.parse((MODELS.parent / f"{file}.py").read_text())
    assert {*read_by_modelling(tree)} == OF_SHARED_CODE[file]


OF_A_BASE = {"rope_theta", "partial_rotary_factor"}
SCALED = {
    "_compute_linear_scaling_rope_parameters": {"factor"},
    "_compute_yarn_parameters": {*YARN, "attention_factor"} - {"truncate"},
    "_compute_llama3_parameters": {*LLAMA3, "factor"},
}
"""By what a rotation is scaled that arguments of Megatron can say; `truncate` is read beside the others."""


@pytest.mark.parametrize("name", SCALED)
def test_a_rotation_is_scaled_by_no_other_number(name: str) -> None:
    tree = ast.parse((MODELS.parent / "modeling_rope_utils.py").read_text())
    (made,) = (x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == name)
    read = set[str]()
    for node in ast.walk(made):
        match node:
            case ast.Subscript(ast.Name("rope_parameters_dict"), ast.Constant(str(key))):
                read.add(key)
            case ast.Call(ast.Attribute(value=of, attr="get"), [ast.Constant(str(key)), *_]):
                if "rope_parameters" in ast.unparse(of):
                    read.add(key)
    assert read - OF_A_BASE - {"truncate"} == SCALED[name]

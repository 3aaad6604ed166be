"""The table of what stays in fp32 is the installed Transformers' own."""

from __future__ import annotations

import ast
from pathlib import Path

import transformers

from intarsia.family.config.kept_in_fp32 import ALWAYS, FROM_FP16, STRICT, is_kept

MODELS = Path(transformers.__file__).parent / "models"


def declared() -> dict[str, dict[str, set[str]]]:
    """What the classes of Transformers declare, by the folder of their model and the attribute."""
    found: dict[str, dict[str, set[str]]] = {}
    for file in MODELS.glob("*/modeling_*.py"):
        text = file.read_text()
        if "_keep_in_fp32_modules" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
            if isinstance(node, ast.Assign) and name.startswith("_keep_in_fp32_modules"):
                words = ast.literal_eval(node.value) or []
                found.setdefault(file.parent.name, {}).setdefault(name, set()).update(words)
    return found


def test_the_table_holds_what_transformers_declares() -> None:
    for model, said in declared().items():
        for name in said.get("_keep_in_fp32_modules_strict", ()):
            assert is_kept(f"model.{name}.x", {"model_type": model}, "BF16"), (model, name)
        for name in said.get("_keep_in_fp32_modules", ()):
            assert is_kept(f"model.{name}.x", {"model_type": model}, "F16"), (model, name)


def test_the_table_holds_nothing_else() -> None:
    said = declared()
    for table, attribute in (
        (STRICT, "_keep_in_fp32_modules_strict"),
        (FROM_FP16, "_keep_in_fp32_modules"),
    ):
        for model, names in table.items():
            assert set(names) <= said[model][attribute], model


def test_a_name_is_matched_between_dots() -> None:
    assert is_kept(f"model.{ALWAYS[0]}", None, "BF16")
    assert not is_kept(f"model.my_{ALWAYS[0]}", None, "BF16")
    assert not is_kept("model.norm.weight", {"model_type": "gpt_oss"}, "BF16")
    assert is_kept("model.norm.weight", {"text_config": {"model_type": "gpt_oss"}}, "F16")

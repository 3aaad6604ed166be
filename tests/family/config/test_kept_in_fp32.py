"""The table of what stays in fp32 is the installed Transformers' own, and holds models of other versions too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers

from intarsia.family.config import kept_in_fp32
from intarsia.family.config.kept_in_fp32 import ALWAYS, FROM_FP16, STRICT, is_kept
from tests.versions import newer_than_pinned

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


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What was found for other tables is forgotten, before a test and after it."""
    kept_in_fp32._pattern.cache_clear()
    kept_in_fp32._declared.cache_clear()
    yield
    kept_in_fp32._pattern.cache_clear()
    kept_in_fp32._declared.cache_clear()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("without", ["transformers", "tables"])
def test_what_transformers_declares_is_known_from_the_tables_and_from_its_files(
    without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without == "transformers":
        if newer_than_pinned("transformers"):
            pytest.skip("the tables are those of the pinned Transformers")
        monkeypatch.setattr(kept_in_fp32, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(kept_in_fp32, "STRICT", {})
        monkeypatch.setattr(kept_in_fp32, "FROM_FP16", {})
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
            if (MODELS / model).exists():  # another version has it
                assert set(names) <= said[model][attribute], model


def test_a_name_is_matched_between_dots() -> None:
    assert is_kept(f"model.{ALWAYS[0]}", None, "BF16")
    assert not is_kept(f"model.my_{ALWAYS[0]}", None, "BF16")
    assert not is_kept("model.norm.weight", {"model_type": "gpt_oss"}, "BF16")
    assert is_kept("model.norm.weight", {"text_config": {"model_type": "gpt_oss"}}, "F16")

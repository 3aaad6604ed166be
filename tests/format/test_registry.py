"""What a user names, sections; and a folder that changes while it is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from intarsia.errors import ChangedError, UsageError
from intarsia.format import registry
from intarsia.format.registry import read_manifest, sections_in
from tests.checkpoints import llama_config, model, write_hf


@pytest.mark.parametrize("section", [5, b"model", ["model", 5], [None]], ids=repr)
def test_a_section_that_is_no_text_is_refused(section: Any) -> None:
    with pytest.raises(UsageError, match="a section is text, or several in a list, found"):
        sections_in(section)


@pytest.mark.parametrize("section", ["actor, critic", ["actor", "critic"], ("actor", "critic ")])
def test_sections_are_named_in_one_text_or_several(section: Any) -> None:
    assert sections_in(section) == ("actor", "critic")


def test_a_configuration_that_is_removed_once_it_was_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = llama_config(num_hidden_layers=1)
    source = write_hf(tmp_path / "a", model(config), config)
    honest = registry.with_files

    def then_removed(*given: Any) -> Any:
        (source / "config.json").unlink()
        return honest(*given)

    monkeypatch.setattr(registry, "with_files", then_removed)
    with pytest.raises(ChangedError, match="json was removed after the checkpoint was opened"):
        read_manifest(source)

"""The SHA-256 that Megatron-core 0.18 records of a checkpoint's files, in the form that it writes."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

import intarsia
from tests.fixtures import fixture

SOURCE = "megatron/td_moe_tp2pp2ep2"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    home = tmp_path / "run" / "iter_0000010"
    shutil.copytree(fixture(SOURCE) / home.name, home)
    files = {p.name: sha256(p.read_bytes()).hexdigest() for p in sorted(home.iterdir())}
    recorded = {"algorithm": "sha256", "files": files}
    (home / "integrity.json").write_text(json.dumps(recorded, indent=2))
    (home.parent / "latest_checkpointed_iteration.txt").write_text("10")
    return home


def kinds(path: Path) -> list[tuple[str, str]]:
    return [(f.kind, f.where) for f in intarsia.verify(path).faults]


def test_files_that_are_as_recorded_are_sound_and_the_record_does_not_travel(
    saved: Path, tmp_path: Path
) -> None:
    before = kinds(fixture(SOURCE) / saved.name)
    assert kinds(saved) == before
    intarsia.convert(saved, tmp_path / "out", to="torch_dist", mesh="tp=2")
    assert not [*(tmp_path / "out").rglob("integrity.json")]


def test_a_file_that_is_another_is_named_though_its_content_is_in_order(saved: Path) -> None:
    backend = saved / "metadata.json"
    backend.write_text(backend.read_text() + " ")
    (fault,) = intarsia.verify(saved).faults
    assert (fault.kind, fault.where) == ("checksum-wrong", "metadata.json")
    assert sha256(backend.read_bytes()).hexdigest() in fault.text


def test_a_file_that_is_recorded_and_gone_is_missed(saved: Path) -> None:
    recorded = json.loads((saved / "integrity.json").read_text())
    recorded["files"]["modelopt_state.pt"] = "0" * 64
    (saved / "integrity.json").write_text(json.dumps(recorded))
    assert ("file-missing", "modelopt_state.pt") in kinds(saved)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"algorithm": "md5", "files": {}}', '{"files": {"../x": "0"}}']
)
def test_a_record_that_cannot_be_read_is_a_fault(saved: Path, text: str) -> None:
    (saved / "integrity.json").write_text(text)
    assert "integrity.json" in [where for _, where in kinds(saved)]

"""A page is written whole, over an older page or over nothing, and never over something else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from intarsia.errors import StoreError, UsageError
from intarsia.report import write
from intarsia.report.content import of_inspection
from intarsia.report.write import write_page
from tests.checkpoints import intarsia, model, write_hf
from tests.report.made import CONFIG, faulty, manifest_of

STORY = of_inspection(manifest_of({"w": (2, 3)}))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pages")
    write_hf(root / "good", model(CONFIG), CONFIG)
    faulty(root / "bad")
    return root


def test_an_older_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("<!doctype html>of yesterday")
    write_page(page, STORY)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "of yesterday" not in page.read_text()
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_new_page_can_be_read_by_whom_the_system_lets(tmp_path: Path) -> None:
    write_page(tmp_path / "a.html", STORY)
    (tmp_path / "b").touch()
    assert (tmp_path / "a.html").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.parametrize("name", ["weights.safetensors", "folder", "absent/report.html"])
def test_what_is_no_page_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError) as caught:
        write_page(tmp_path / name, STORY)
    assert caught.value.hint
    assert (tmp_path / "weights.safetensors").read_bytes() == b"\x08\0\0\0\0\0\0\0{}"


def test_a_page_that_cannot_be_finished_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(src: str, dst: Path) -> None:
        raise OSError(28, "No space left on device")

    page = tmp_path / "report.html"
    page.write_text("<!DOCTYPE html>older")
    monkeypatch.setattr(write.os, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        write_page(page, STORY)
    assert page.read_text() == "<!DOCTYPE html>older"
    assert os.listdir(tmp_path) == ["report.html"]


def test_inspect_writes_a_page_beside_its_answer(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    plain, with_page = (
        intarsia("inspect", root / "good", "--json"),
        intarsia("inspect", root / "good", "--json", "--html", page),
    )
    assert with_page.status == 0
    assert json.loads(with_page.out) == json.loads(plain.out)
    assert "What this checkpoint holds" in page.read_text()


def test_verify_writes_a_page_and_keeps_its_status(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert intarsia("verify", root / "good", "--html", page).status == 0
    assert "sound: no known fault" in page.read_text()
    assert intarsia("verify", root / "bad", "--html", page).status == 1
    assert "not-finite" in page.read_text()
    assert intarsia("verify", root / "good", root / "bad", "--html", page).status == 1
    assert "2 tensors different; 1 only in A" in page.read_text()


def test_a_checkpoint_that_cannot_be_read_has_a_page_of_its_faults(
    root: Path, tmp_path: Path
) -> None:
    write_hf(tmp_path / "cut", model(CONFIG), CONFIG)
    (file,) = (tmp_path / "cut").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    page = tmp_path / "page.html"
    assert intarsia("verify", tmp_path / "cut", "--html", page).status == 1
    assert 'id="fault-0"' in page.read_text()


def test_a_page_that_may_not_be_written_is_refused_before_any_work(
    root: Path, tmp_path: Path
) -> None:
    answer = intarsia("verify", root / "absent", "--html", root / "good" / "config.json")
    assert answer.status == 2
    assert "is not a page" in answer.err

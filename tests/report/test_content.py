"""What a page tells agrees with what was found."""

from __future__ import annotations

import pickle
from pathlib import Path
from shutil import copytree

import pytest

import intarsia
from intarsia.format.registry import read_manifest
from intarsia.report.content import PageContent, State, of_comparison, of_inspection, of_soundness
from tests.checkpoints import model, write_hf
from tests.report.made import CONFIG, NORM, Q, V, faulty


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("story")
    write_hf(root / "good", model(CONFIG), CONFIG)
    faulty(root / "bad")
    intarsia.convert(root / "good", root / "sharded", to="dcp", mesh="tp=2")
    return root


def facts(story: PageContent) -> dict[str, tuple[str, ...]]:
    return dict(story.facts)


def test_a_complete_checkpoint_has_no_state_but_fine(root: Path) -> None:
    story = of_inspection(read_manifest(root / "sharded"))
    assert story.good
    assert not story.states
    assert facts(story)["format"] == ("dcp",)
    assert facts(story)["family"] == ("llama",)
    assert facts(story)["complete"] == ("yes",)


def test_headers_show_which_tensor_is_absent(root: Path) -> None:
    story = of_inspection(read_manifest(root / "bad"))
    assert not story.good
    assert story.states == {NORM: State.ABSENT}
    assert story.verdict == "incomplete: 1 tensor absent"


def test_a_tensor_of_which_chunks_are_lost_is_not_called_complete(
    root: Path, tmp_path: Path
) -> None:
    copytree(root / "sharded", tmp_path / "part")
    said = pickle.loads((tmp_path / "part" / ".metadata").read_bytes())
    said.state_dict_metadata[Q].chunks.pop()
    (tmp_path / "part" / ".metadata").write_bytes(pickle.dumps(said))
    found = intarsia.inspect(tmp_path / "part")
    story = of_inspection(found.manifest)
    assert (story.good, story.problems) == (found.complete, found.problems)
    assert story.verdict == "incomplete: 1 tensor lacks elements or scales"
    assert facts(story)["complete"] == ("no, 1 tensor lacks elements or scales",)


def test_tensors_that_faults_name_are_faulty_and_missing_ones_absent(root: Path) -> None:
    story = of_soundness(intarsia.verify(root / "bad"), read_manifest(root / "bad"))
    assert not story.good
    assert story.states == {NORM: State.ABSENT, Q: State.FAULTY, V: State.FAULTY}
    assert story.verdict == "3 faults"


def test_a_fault_that_names_a_stored_tensor_marks_what_that_holds(root: Path) -> None:
    from intarsia.checking.alone.soundness import Soundness
    from intarsia.checking.fault import Fault

    intarsia.convert(root / "good", root / "megatron", to="torch_dist")
    manifest = read_manifest(root / "megatron")
    fused = next(s for s in manifest.stored.values() if len(s.layout.tensors) == 3)
    held = {fused.name: fused.layout.tensors}
    held[fused.key] = tuple(
        name for s in manifest.stored.values() if s.key == fused.key for name in s.layout.tensors
    )
    assert len(held[fused.key]) == 3 * len(held[fused.name])
    for named, tensors in held.items():
        fault = Fault("not-finite", (named,), "", "NaN")
        story = of_soundness(Soundness("megatron", 1, 1, (fault,)), manifest)
        assert story.states == dict.fromkeys(tensors, State.FAULTY)


def test_a_sound_checkpoint_is_told_so(root: Path) -> None:
    story = of_soundness(intarsia.verify(root / "good"), read_manifest(root / "good"))
    assert story.good
    assert not story.states
    assert story.verdict == "sound: no known fault"


def test_two_checkpoints_differ_where_their_tensors_do(root: Path) -> None:
    found = intarsia.verify(root / "sharded", root / "bad")
    story = of_comparison(found, read_manifest(root / "sharded"), read_manifest(root / "bad"))
    assert not story.good
    assert story.states == {NORM: State.ABSENT, Q: State.DIFFERENT, V: State.DIFFERENT}
    assert story.verdict == "2 tensors different; 1 only in A"
    assert facts(story)["format"] == ("dcp", "hf")


def test_equal_checkpoints_are_told_so(root: Path) -> None:
    found = intarsia.verify(root / "good", root / "sharded")
    story = of_comparison(found, read_manifest(root / "good"), read_manifest(root / "sharded"))
    assert story.good
    assert not story.states
    assert story.verdict == "equal, bit by bit"

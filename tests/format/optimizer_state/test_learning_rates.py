"""The rates by which newer versions of Megatron-core find a parameter group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia.errors import UsageError
from intarsia.format.megatron.common import read_common
from intarsia.format.megatron.optimizer.groups import groups_in, optimizer_of
from intarsia.format.optimizer_state.learning_rates import Rates, note_on_rates, set_rates
from intarsia.store.reading.folder import Folder
from tests.checkpoints import write_dcp
from tests.refusals.numbers import CONFIG, trained, weights


def written_groups(folder: Path) -> list[dict[str, Any]]:
    (at,) = folder.glob("iter_*")
    with Folder(at) as files:
        return groups_in(optimizer_of(read_common(files, None), {}))  # type: ignore[arg-type]


def test_a_source_of_torch_gets_the_rates_that_were_given_and_no_others(tmp_path: Path) -> None:
    source = trained(tmp_path)
    plain = intarsia.convert(source, tmp_path / "plain", to="torch_dist")
    assert not any("max_lr" in group for group in written_groups(tmp_path / "plain"))
    assert any("max_lr" in note for note in plain.notes)
    given = intarsia.convert(source, tmp_path / "given", to="torch_dist", megatron_lr="3e-4,3e-5")
    rates = [(g["max_lr"], g["min_lr"]) for g in written_groups(tmp_path / "given")]
    assert rates == [(3e-4, 3e-5)] * 2
    assert not any("max_lr" in note for note in given.notes)
    assert not any("max_lr" in json.dumps(x) for x in (given.as_json()["notes"],))


def test_rates_of_a_source_go_along_without_being_given(tmp_path: Path) -> None:
    intarsia.convert(trained(tmp_path), tmp_path / "a", to="torch_dist", megatron_lr=0.5)
    for step, to in enumerate(("torch_dist", "dcp", "torch_dist", "hf", "torch_dist")):
        intarsia.convert(
            tmp_path / "ab"[step % 2], tmp_path / "ab"[1 - step % 2], to=to, overwrite=True
        )
    groups = written_groups(tmp_path / "b")
    assert {(g["max_lr"], g["min_lr"]) for g in groups} == {(0.5, None)}


@pytest.mark.parametrize("words", ["x", "1,2,3", "-1", "nan", "inf", "1e-5,1e-4", ","])
def test_what_is_no_pair_of_rates_is_refused(words: str) -> None:
    with pytest.raises(UsageError, match="--megatron-lr is"):
        Rates.parse(words)
    assert Rates.parse(None) is None
    assert Rates.parse(0.0) == Rates(0.0)


def test_groups_with_rates_of_their_own_keep_them() -> None:
    groups = [{"max_lr": 0.1, "min_lr": 0.0}, {"max_lr": None}, {}]
    with pytest.raises(UsageError, match=r"max_lr=0.1 and min_lr=0.0"):
        set_rates(groups, Rates(0.2))
    set_rates(groups, Rates(0.1, 0.0))
    assert groups == [{"max_lr": 0.1, "min_lr": 0.0}] * 3
    assert [*note_on_rates(groups)] == []
    assert len([*note_on_rates([{"lr": 1.0}])]) == 1
    assert [*note_on_rates([])] == []


def test_groups_of_torch_in_fsdp_dtensor_are_reported_as_torchs(tmp_path: Path) -> None:
    groups = [{"lr": 0.1, "params": list(weights())}]
    state = {n: {"step": torch.tensor(1.0), "exp_avg": x.float()} for n, x in weights().items()}
    held = weights() | {"optimizer": {"state": state, "param_groups": groups}}
    source = write_dcp(tmp_path / "dcp", held)
    made = intarsia.convert(source, tmp_path / "fsdp", to="fsdp_dtensor", config=CONFIG)
    assert any("param_to_group_meta" in note for note in made.notes)
    made = intarsia.convert(trained(tmp_path), tmp_path / "other", to="fsdp_dtensor")
    assert not any("param_to_group_meta" in note for note in made.notes)

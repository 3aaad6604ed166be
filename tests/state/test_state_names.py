"""One noun for the names of optimizer state: one parser, one spelling of ours, one of torch's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.state.names import (
    SETTING,
    StateName,
    is_state,
    kind_of,
    master_of,
    of_kind,
    parameter_of,
    step_of,
)

WORDS = st.text("abcdefghijklmnopqrstuvwxyz_0123456789", min_size=1)
KINDS = WORDS.filter(lambda word: word not in ("state", "param_groups"))
PARAMETERS = st.lists(WORDS, min_size=1, max_size=5).map(".".join)


@given(KINDS, PARAMETERS)
def test_both_spellings_lead_back_to_the_name(kind: str, parameter: str) -> None:
    name = StateName(kind, parameter)
    assert StateName.of(str(name)) == name
    assert StateName.of_torch(name.as_torch) == name
    assert StateName.of(name.as_torch) is None
    assert of_kind(kind)(parameter) == str(name)
    assert (kind_of(str(name)), parameter_of(str(name))) == (kind, parameter)


def test_what_else_an_optimizer_keeps_is_the_state_of_no_parameter() -> None:
    for name in ("optimizer.param_groups.0.lr", "optimizer.state.w.exp_avg", "optimizer.class"):
        assert is_state(name)
        assert StateName.of(name) is None
        assert kind_of(name) == SETTING
        assert parameter_of(name) == name


@pytest.mark.parametrize(
    "name", ["w", "optimizer", "optim.exp_avg.w", "model.optimizer.step.w", ""]
)
def test_a_weight_has_no_kind_and_is_its_own_parameter(name: str) -> None:
    assert not is_state(name)
    assert StateName.of(name) is StateName.of_torch(name) is None
    assert kind_of(name) == ""
    assert parameter_of(name) == name


@pytest.mark.parametrize(
    "name", ["optimizer.", "optimizer..w", "optimizer.step.", "optimizer.step"]
)
def test_a_name_without_kind_or_parameter_is_none(name: str) -> None:
    assert StateName.of(name) is None


def test_names_of_main_weights_and_steps() -> None:
    assert master_of("a.weight") == "optimizer.master.a.weight"
    assert step_of("a.weight") == "optimizer.step.a.weight"
    assert str(StateName("exp_avg", "3")) == "optimizer.exp_avg.3"

"""Random resumes: a training that was saved and loaded is the one that never stopped, or it is refused for a reason.

A failure prints its seed: python -m tests.live.resume_ranks SEED
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.live.resume_outcome import REFUSALS, Ranks, WrongError, here, outcome
from tests.live.resume_ranks import Pool
from tests.live.resume_scenario import Scenario

SCENARIOS = 200


def outcomes(scenarios: Iterable[Scenario], ranks: Ranks) -> Counter[str]:
    """How many scenarios end how; raise where some are wrong, with their seeds."""
    found: Counter[str] = Counter()
    wrong = []
    for scenario in scenarios:
        try:
            found[outcome(scenario, ranks)] += 1
        except (WrongError, RuntimeError) as error:
            wrong.append(f"seed {scenario.seed}: {error}")
    told = ", ".join(f"{n} {how}" for how, n in found.most_common())
    refused = 1 - found["equal"] / max(1, found.total())
    print(f"{told}, {len(wrong)} wrong; {refused:.0%} refused")
    if wrong:
        pytest.fail("\n\n".join(wrong))
    return found


QUICK = (5, 19, 82, 84, 107, 118, 148, 158)
"""Seeds that together have most oddities, wrappers, groupings and optimizers, and a refusal."""


@pytest.mark.parametrize("seed", QUICK)
@pytest.mark.one_in(2)
def test_a_run_on_one_rank_goes_on_as_if_it_had_not_stopped(seed: int) -> None:
    outcomes([Scenario.drawn(seed, ranks=1)], here)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_runs_go_on_as_if_they_had_not_stopped(capsys) -> None:
    with Pool() as pool, capsys.disabled():
        found = outcomes(map(Scenario.drawn, range(SCENARIOS)), pool)
    assert found["equal"] > SCENARIOS * 0.6
    assert found.keys() == {"equal", *REFUSALS}, "a reason to refuse that nothing is refused for"

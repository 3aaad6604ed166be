"""Every exploit of `attacks/` ends in one clear error, and in nothing else."""

from __future__ import annotations

import json

import pytest

from tests.attacks.run import THEMES, exploits
from tests.checkpoints import python


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "which", ["one command each", pytest.param("--all", marks=pytest.mark.slow)]
)
def test_no_exploit_does_more_than_end_in_an_error(which: str) -> None:
    done = python("-m", "tests.attacks.run", *THEMES, which, seconds=850)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = {row["exploit"]: row["wrong"] for row in rows if row["wrong"]}
    assert not wrong
    ran = {(row["theme"], row["exploit"]) for row in rows}
    missing = {(theme, name) for theme in THEMES for name in exploits(theme)} - ran
    assert not missing, f"these ended their process: {missing}, {done.stderr[-500:]}"


@pytest.mark.parametrize("theme", THEMES)
def test_every_exploit_says_in_one_sentence_what_it_tries(theme: str) -> None:
    assert len(exploits(theme)) >= 5
    for name, exploit in exploits(theme).items():
        assert exploit.__doc__.strip().endswith("."), name

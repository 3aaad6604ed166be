"""The mutants are of the code as it is; that each is dead, `python -m tests.mutants` shows."""

from __future__ import annotations

from tests.checkpoints import ROOT
from tests.mutants import MUTANTS


def test_the_text_of_each_mutant_occurs_once_in_its_file() -> None:
    stale = [m.name for m in MUTANTS if (ROOT / m.file).read_text().count(m.text) != 1]
    assert stale == []

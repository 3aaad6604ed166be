"""A model that `parallelize` placed, through accelerate's `prepare` and through Trainer, as one process trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.distributed.ranks import on_ranks_with
from tests.journeys.parallelized_training import alone, through_accelerate, through_trainer


def test_accelerate_takes_a_placed_model_as_it_is() -> None:
    for losses, untouched in on_ranks_with(through_accelerate.__module__, 2, through_accelerate):
        assert untouched
        torch.testing.assert_close(losses, alone(), rtol=1e-4, atol=0)


@pytest.mark.slow
def test_trainer_takes_a_placed_model_as_it_is(tmp_path: Path) -> None:
    for losses, untouched in on_ranks_with(
        through_trainer.__module__, 2, through_trainer, tmp_path
    ):
        assert untouched
        torch.testing.assert_close(losses, alone(), rtol=1e-3, atol=0)


@pytest.mark.slow
def test_a_precision_that_does_not_reach_the_model_is_refused() -> None:
    with pytest.raises(AssertionError, match="has no effect on a model that `parallelize` placed"):
        on_ranks_with(through_accelerate.__module__, 2, through_accelerate, "bf16")

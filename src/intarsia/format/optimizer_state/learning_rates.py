"""The learning rates by which Megatron knows a parameter group.

Up to 0.18, Megatron-core finds the stored group of a parameter by `wd_mult`, `lr_mult` and whether it is of
parallel experts.  From 0.19 on it compares these fields too, and `max_lr` and `min_lr` are the rates between
which the run that loads will move: `--lr` and `--min-lr`.  A source that torch trained does not hold them, and
no field of torch's stands for them: `initial_lr` is a factor where a schedule gives the rate itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from intarsia.errors import UsageError
from intarsia.frozen import frozen

OVERRIDES = ("max_lr", "min_lr", "start_wd", "end_wd", "optimizer")
"""Fields that distinguish groups from Megatron-core 0.19 on, beside those that always did."""

_LR = "give --lr and --min-lr of the run that will resume, for example --megatron-lr 3e-4,3e-5"


@frozen
class Rates:
    """The highest and the lowest rate of a run; a run without a lowest has none."""

    max_lr: float
    min_lr: float | None = None

    @classmethod
    def parse(cls, words: str | float | None) -> Rates | None:
        """The rates in `LR` or `LR,MIN_LR`; None for nothing.

        >>> Rates.parse("3e-4,3e-5")
        Rates(max_lr=0.0003, min_lr=3e-05)
        """
        if words is None:
            return None
        try:
            found = [float(word) for word in str(words).split(",")]
        except ValueError:
            found = []
        good = len(found) in (1, 2) and all(isfinite(x) and x >= 0 for x in found)
        if not good or found[0] < found[-1]:
            raise UsageError(f"--megatron-lr is {words!r}", hint=_LR)
        return cls(*found)

    def __str__(self) -> str:
        return f"{self.max_lr!r}" + ("" if self.min_lr is None else f",{self.min_lr!r}")


def set_rates(groups: Sequence[dict[str, Any]], rates: Rates | None) -> None:
    """Give groups without rates those of the run that resumes; raise where they have others."""
    if rates is None:
        return
    for group in groups:
        said = (group.get("max_lr"), group.get("min_lr"))
        if said[0] is None:
            group |= {"max_lr": rates.max_lr, "min_lr": rates.min_lr}
        elif said != (rates.max_lr, rates.min_lr):
            raise UsageError(
                f"--megatron-lr gives max_lr={rates.max_lr!r} and min_lr={rates.min_lr!r}, and a"
                f" parameter group of the source has max_lr={said[0]!r} and min_lr={said[1]!r}",
                hint="leave --megatron-lr out: the source's own rates are kept",
            )


def note_on_rates(groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A note where Megatron-core would not find groups again."""
    if groups and any(group.get("max_lr") is None for group in groups):
        yield (
            "the source's parameter groups have no max_lr, by which Megatron-core 0.19 and"
            " later identifies them: it will not load this optimizer state (earlier versions"
            f" do); for those versions, {_LR}"
        )

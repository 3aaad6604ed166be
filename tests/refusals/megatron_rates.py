"""Rates for Megatron's parameter groups that cannot be given."""

from __future__ import annotations

from pathlib import Path

import intarsia
from tests.refusals.case import refusal
from tests.refusals.numbers import CONFIG, trained, weights


@refusal("Rates of a Megatron run that are no rates", area="usage")
def no_rates(tmp: Path) -> None:
    intarsia.convert(tmp / "model", tmp / "out", to="torch_dist", megatron_lr="1e-5,3e-4")


@refusal("Rates of a Megatron run for a format without Megatron's groups", area="usage")
def rates_elsewhere(tmp: Path) -> None:
    intarsia.convert(trained(tmp), tmp / "out", to="dcp", megatron_lr="3e-4,3e-5")


@refusal("Rates of a Megatron run without optimizer state", area="usage")
def rates_of_nothing(tmp: Path) -> None:
    from tests.checkpoints import write_hf

    source = write_hf(tmp / "model", weights(), CONFIG)
    intarsia.convert(source, tmp / "out", to="torch_dist", megatron_lr="3e-4,3e-5")


@refusal("Other rates than the parameter groups of a Megatron source have", area="usage")
def other_rates(tmp: Path) -> None:
    intarsia.convert(trained(tmp), tmp / "td", to="torch_dist", megatron_lr="3e-4,3e-5")
    intarsia.convert(tmp / "td", tmp / "out", to="torch_dist", megatron_lr="1e-4")

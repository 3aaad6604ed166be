"""Quantised weights: a weight and the tensors that its numbers need are one thing."""

from intarsia.quantised.find import find_quantised
from intarsia.quantised.weight import (
    Alike,
    Quantised,
    QuantisedWeight,
    Role,
    ScaleFault,
    WeightPart,
)

__all__ = [
    "Alike",
    "Quantised",
    "QuantisedWeight",
    "Role",
    "ScaleFault",
    "WeightPart",
    "find_quantised",
]

"""Quantised weights: a weight and the tensors that its numbers need are one thing."""

from intarsia.quantised.find import find_quantised
from intarsia.quantised.weight import (
    AlikeWeights,
    PartRole,
    QuantisedWeight,
    QuantisedWeights,
    ScaleFault,
    WeightPart,
)

__all__ = [
    "AlikeWeights",
    "QuantisedWeights",
    "QuantisedWeight",
    "PartRole",
    "ScaleFault",
    "WeightPart",
    "find_quantised",
]

"""Quantised weights: a weight and the tensors that its numbers need are one thing."""

from intarsia.quantised.find import find_quantised
from intarsia.quantised.weight import Alike, Part, Quantised, QuantisedWeight, Role, ScaleFault

__all__ = ["Alike", "Part", "Quantised", "QuantisedWeight", "Role", "ScaleFault", "find_quantised"]

"""What is stored for the numbers of a tensor, and how numbers come of it; one file for each way to store them."""

from intarsia.value.base import Value, Window
from intarsia.value.change import Change
from intarsia.value.plain import PLAIN, Plain
from intarsia.value.remainder import Remainder
from intarsia.value.shift import Shift, shifted

__all__ = ["PLAIN", "Change", "Plain", "Remainder", "Shift", "Value", "Window", "shifted"]

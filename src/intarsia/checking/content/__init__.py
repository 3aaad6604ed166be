"""Faults that the numbers of one checkpoint show."""

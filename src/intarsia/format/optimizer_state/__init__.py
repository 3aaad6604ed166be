"""Optimizer state by its form: named, numbered, and in groups."""

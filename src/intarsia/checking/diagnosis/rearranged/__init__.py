"""Rows, columns and blocks of a tensor in another order: orders that have a name, and any order that matching finds."""

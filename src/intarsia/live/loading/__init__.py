"""Filling a live model: what its memory asks of a checkpoint, the proof, the bytes, and what stays as it was."""

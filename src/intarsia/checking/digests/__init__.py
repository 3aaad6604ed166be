"""Digests of logical tensors: computed, recorded with what is written, and checked."""

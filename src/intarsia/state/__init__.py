"""Optimizer state: the names of its tensors and of what is kept beside them, said once."""

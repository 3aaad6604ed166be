"""Optimizer state of Megatron-LM: by parameter or in buckets, and its parameter groups."""

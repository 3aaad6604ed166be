"""Megatron-LM's `torch_dist` checkpoints."""

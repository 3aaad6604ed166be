"""Megatron-LM's checkpoints: what both of its formats share."""

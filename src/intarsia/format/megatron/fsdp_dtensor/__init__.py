"""Megatron-FSDP's `fsdp_dtensor` checkpoints."""

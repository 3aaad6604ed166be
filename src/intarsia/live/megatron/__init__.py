"""Live Megatron models: what each of their tensors holds of the logical ones."""

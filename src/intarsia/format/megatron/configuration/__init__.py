"""Megatron-LM's arguments and the configurations of the hub: translated both ways, and compared."""

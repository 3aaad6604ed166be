"""Two checkpoints compared: `verify A B` and `diff A B`."""

"""One pass over the bytes of a checkpoint, block by block."""

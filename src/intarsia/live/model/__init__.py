"""What a live model holds: its names without wrappers, its state dict, its memory in this process."""

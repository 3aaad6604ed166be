"""Files that `torch.save` writes, read without running a pickle."""

"""`torch.distributed.checkpoint` folders."""

"""Checkpoints that try to harm whoever reads them; see README.md."""

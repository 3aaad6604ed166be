"""One opened checkpoint: its lazy tensors, its entries, and what is said of it from headers or numbers."""

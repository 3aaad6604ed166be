"""Where two tensors differ: rows, ranks, files, pages."""

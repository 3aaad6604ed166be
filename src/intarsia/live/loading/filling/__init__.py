"""Bytes into the memory of tensors: read, mapped, or by way of a device."""

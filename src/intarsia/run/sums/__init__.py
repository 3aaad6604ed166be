"""Sums and checksums of bytes that are read or written in parts, in any order."""

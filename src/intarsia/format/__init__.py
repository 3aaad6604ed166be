"""Readers and writers of checkpoint formats, byte by byte."""

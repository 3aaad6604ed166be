"""Layouts: which element of which logical tensor lies at each place of a buffer."""

from intarsia.layout.cover import Cover, cover, once, tally, unravel
from intarsia.layout.draw import describe_piece, draw
from intarsia.layout.layout import Layout, by_tensor, copies, copies_to, renaming, whole_layout
from intarsia.layout.parts import chunk, concat, padding, shard, split, stack
from intarsia.layout.piece import Loop, Piece, align, clip, meet, run

__all__ = [
    "Cover", "Layout", "Loop", "Piece", "align", "by_tensor", "chunk", "clip", "concat", "copies",
    "copies_to", "cover", "describe_piece", "draw", "meet", "once", "padding", "renaming", "run",
    "shard", "split", "stack", "tally", "unravel", "whole_layout",
]  # fmt: skip

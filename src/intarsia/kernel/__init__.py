"""Bytes read, summed and moved in a small compiled library, without the interpreter's lock.

It never decides what bytes mean: its callers have proven that.  Everything works without it, too, in
Python and NumPy, with the same answers.
"""

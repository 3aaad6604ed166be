"""A destination while it is written: hidden until it is whole."""

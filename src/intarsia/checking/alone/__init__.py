"""One checkpoint checked by itself: `verify A`."""

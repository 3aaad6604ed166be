"""Live models and state dicts: torch's own objects, seen through layouts."""

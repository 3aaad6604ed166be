"""Saving a live model: a snapshot, the plan that ranks agree on, and what each of them writes."""

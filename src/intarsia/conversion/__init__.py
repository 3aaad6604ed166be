"""A conversion from what was asked for to a committed folder: feasible, targets, job, running."""

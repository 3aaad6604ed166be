"""What Intarsia costs beside its peers and beside the limit of the machine, measured in the same run."""

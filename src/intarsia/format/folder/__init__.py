"""The folder of a checkpoint: its files, small ones beside the weights, the run that it lies in, and what is none of ours."""

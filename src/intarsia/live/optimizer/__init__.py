"""Live optimizers: their state and settings by the names of the model's parameters."""

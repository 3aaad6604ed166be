"""The families: one table each, from the fields of a `config.json`."""

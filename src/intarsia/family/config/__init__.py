"""What a `config.json` says, and what it means where it says nothing."""

"""What a run has written, kept so that one that was killed is continued."""

"""Every refusal that a user can meet, provoked for real; `python -m tests.refusals` writes the page."""

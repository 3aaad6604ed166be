"""The ranks of a job: where they meet, and how they find each other."""

"""What is there and what it holds, whatever store keeps it."""

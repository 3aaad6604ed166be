"""What could have made B out of A; each hypothesis is carried out before it is stated."""

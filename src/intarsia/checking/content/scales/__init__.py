"""What the scales of quantised weights say of them: whether they are numbers, of a weight, and of this one."""

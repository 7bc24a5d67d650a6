"""What is in order on a machine and in a launch, what is not, and what to do about it."""

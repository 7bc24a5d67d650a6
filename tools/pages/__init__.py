"""Pages of the reference, read from the code."""

"""Models of which each rank holds a slice of the weights."""

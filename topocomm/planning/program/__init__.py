"""A schedule as memory: where each slot of a rank lives."""

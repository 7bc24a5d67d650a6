"""What a plan, a library's algorithm or a step of a model takes on a machine that is not there."""

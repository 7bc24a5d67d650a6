"""Reference systems by maker."""

"""Proof that a schedule does what its collective promises."""

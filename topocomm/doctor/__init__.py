"""Checks of a machine and a launch: findings with remedies."""

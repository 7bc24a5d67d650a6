"""Measuring collectives: values, checks, the alternatives beside which they are measured, and the tables."""

"""Predictions held against what others measured."""

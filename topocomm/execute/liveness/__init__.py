"""Waiting with limits, reports of who waits for whom, failure and shutdown."""

"""Engines that run calls in device memory."""

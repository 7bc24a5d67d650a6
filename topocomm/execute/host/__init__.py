"""Engines that run calls in host memory."""

"""Configurations in which kernels are compiled, and the resources they then take."""

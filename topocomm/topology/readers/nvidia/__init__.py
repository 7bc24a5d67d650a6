"""Output of NVIDIA's tools."""

"""What is reduced: operators, their memory layout and fused kernels."""

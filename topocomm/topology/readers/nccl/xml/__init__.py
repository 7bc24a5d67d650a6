"""XML of NCCL and RCCL."""

"""What NCCL and RCCL run: the tuner's choice, rings, trees, switches; closed forms and work."""

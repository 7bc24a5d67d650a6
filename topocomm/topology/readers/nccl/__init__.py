"""Files of NCCL and RCCL."""

"""Logs of NCCL and RCCL."""

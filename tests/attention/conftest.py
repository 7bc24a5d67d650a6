"""Ranks on threads share the cores, so each computes on one: teams of threads would wait for each other."""

import torch

torch.set_num_threads(1)

"""Tokens that all ranks choose alike: the choices of rank 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from topocomm import Communicator


class BroadcastChoices(TorchFunctionMode):
    """A mode of torch that gives every rank the discrete choices of rank 0.

    Logits are equal to the last bit where all ranks run on equal hardware; random generators may differ, and ranks on
    threads share one.
    """

    MULTINOMIAL = frozenset({torch.multinomial, torch.Tensor.multinomial})
    DRAWS = MULTINOMIAL | {torch.rand_like}  # the latter accepts the tokens of an assistant
    CHOICES = DRAWS | {torch.argmax, torch.Tensor.argmax}

    def __init__(self, comm: Callable[[], Communicator]) -> None:
        """A mode over the ranks that `comm` gives at each choice: they change where a rank is lost."""
        super().__init__()
        self._comm = comm

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in self.CHOICES:
            return func(*args, **kwargs)
        comm = self._comm()
        draws_elsewhere = func in self.DRAWS and comm.rank != 0
        if not draws_elsewhere:
            choice = func(*args, **kwargs)
        elif func in self.MULTINOMIAL:
            choice = _undrawn(*args, **kwargs)
        else:
            choice = torch.zeros_like(*args, **kwargs)
        return comm.broadcast(choice.cpu(), root=0).to(choice.device)


def _undrawn(weights: torch.Tensor, num_samples: int, *_: Any, **__: Any) -> torch.Tensor:
    """An array like the result of `torch.multinomial` with these arguments, without drawing."""
    return torch.zeros((*weights.shape[:-1], num_samples), dtype=torch.int64, device=weights.device)

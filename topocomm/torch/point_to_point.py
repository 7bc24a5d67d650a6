"""Messages between two ranks of a group, over gloo connections of their own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import torch
from torch._C._distributed_c10d import ProcessGroupGloo, Store

from topocomm.errors import OperatorError, RankFailedError
from topocomm.execute.liveness.waiting import Waiting
from topocomm.torch.values import checked
from topocomm.torch.work import MessageWork


class Messages(ProcessGroupGloo):
    """The gloo group below one of ours; torch sees it as the backend for host memory.

    A new time limit, which torch gives to this backend only, is set on the group's `waiting`, too.
    """

    def __init__(self, store: Store, rank: int, size: int, waiting: Waiting) -> None:
        # Connected at once: connections that gloo opens when they are used make a send wait for its receive.
        super().__init__(store, rank, size, timeout=timedelta(seconds=waiting.timeout_s))
        self._waiting = waiting

    def _set_default_timeout(self, timeout: timedelta) -> None:
        super()._set_default_timeout(timeout)
        self._waiting.timeout_s = timeout.total_seconds()

    def send_tensor(self, tensor: torch.Tensor, peer: int, tag: int) -> MessageWork:
        """Begin to send a tensor, which must be left alone until the message is through."""
        what = f"rank {self.rank()}: send to rank {peer}, tag {tag}"
        gloo: Any = self
        self._check_peer(peer, what)
        return self._begin(gloo.send, checked(tensor, what).contiguous(), None, what, peer, tag)

    def receive_tensor(self, tensor: torch.Tensor, peer: int | None, tag: int) -> MessageWork:
        """Begin to receive a tensor from a rank, None: from any."""
        whom = "any rank" if peer is None else f"rank {peer}"
        what = f"rank {self.rank()}: receive from {whom}, tag {tag}"
        target, gloo = checked(tensor, what), cast(Any, self)
        memory = target if target.is_contiguous() else torch.empty(target.shape, dtype=target.dtype)
        late = None if memory is target else target
        if peer is None:
            return self._begin(gloo.recv_anysource, memory, late, what, tag)
        self._check_peer(peer, what)
        return self._begin(gloo.recv, memory, late, what, peer, tag)

    def _begin(
        self, post: Callable[..., Any], memory: torch.Tensor, target: torch.Tensor | None, what: str, *address: int
    ) -> MessageWork:
        items = memory.reshape(-1) if memory.dtype in PLAIN else memory.reshape(-1).view(torch.uint8)
        try:
            work = post([items], *address)
        except RuntimeError as error:
            words = str(error).strip().splitlines()[0].split("] ", 1)[-1]
            raise RankFailedError(f"{what}: it cannot begin ({words})") from error
        return MessageWork(work, what, self._waiting.timeout_s, memory, target)

    def _check_peer(self, peer: int, what: str) -> None:
        if not 0 <= peer < self.size() or peer == self.rank():
            raise OperatorError(f"{what}: expected another rank of the group, 0 to {self.size() - 1}")


PLAIN = {torch.float32, torch.float64, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64}
"""Dtypes that gloo knows itself; others travel as their bytes."""

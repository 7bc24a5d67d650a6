"""A torch.distributed process group: gloo, with values in host memory.

Traffic runs over connections of our own between the same ranks, made through the group's key-value store, so that
the group itself is never used: its messages, tags and errors stay the program's. The store is used for the set-up
only, since a store whose host stops blocks its clients; if its host ends later, nothing here notices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from topocomm.errors import DeadlineError, MissingExtraError, TopocommError
from topocomm.execute.transports.torch_messages import BREAK_TAG, Helpers, InFlightMessages, Notes, depart
from topocomm.execute.transports.transport import Batch, Message, Transport
from topocomm.operators.layout import Buffer

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

TURN_S = 0.0005
ARRIVALS_TURN_S = 0.002
PENDING_S = 0.005
"""Seconds for helpers to find out which messages of a late batch have arrived."""


def load_torch() -> Any:
    """Return the torch module with torch.distributed.

    Raises:
        MissingExtraError: torch is not installed.
        TopocommError: This build of torch has no torch.distributed.
    """
    try:
        import torch
        import torch.distributed
    except ModuleNotFoundError:
        raise MissingExtraError("the torch transport", "torch", "attention") from None
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise TopocommError("this build of torch has no torch.distributed with gloo; install another one")
    return torch


class TorchBatch(Batch):
    """Messages on one buffer, shared with torch without a copy where they lie in one piece."""

    def __init__(
        self,
        transport: TorchGroupTransport,
        buffer: Buffer,
        sends: Sequence[Message],
        receives: Sequence[Message],
        tag: int,
    ) -> None:
        self.sends, self.receives = tuple(sends), tuple(receives)
        self._transport, self._tag = transport, tag
        self._out = [_Part(transport.torch, buffer, message, writes=False) for message in self.sends]
        self._in = [_Part(transport.torch, buffer, message, writes=True) for message in self.receives]
        self._flight: InFlightMessages | None = None

    def start(self) -> None:
        gloo, tag = self._transport.gloo, self._tag
        departures = [depart(gloo.recv, part.tensor, part.message, tag, part) for part in self._in]
        for part in self._out:
            part.gather()
            departures.append(depart(gloo.send, part.tensor, part.message, tag, part))
        self._flight = InFlightMessages(departures)
        self._transport.helpers.send_with(self._flight)

    def wait(self, timeout_s: float) -> bool:
        flight = self._flight
        if flight is None:
            return True
        if not flight.wait(0):
            if timeout_s <= 0:
                time.sleep(0)  # the helper needs the interpreter to say that a message came
            if not flight.wait(max(0.0, timeout_s)):
                return False
        if flight.failed is not None:  # never complete; the notes have the reason for whoever looks
            self._transport.notes.lose(*flight.failed)
            return False
        self._flight = None
        for part in self._in:
            part.scatter()
        return True

    def pending(self) -> tuple[list[Message], list[Message]]:
        flight = self._flight
        if flight is None:
            return [], []
        if unwatched := len(flight.waiting):  # one helper takes messages in turn: these may have come long ago
            self._transport.helpers.send_with(flight, unwatched)
            flight.wait(PENDING_S)
        left, cut = flight.left(), len(self.receives)
        return [self.sends[i - cut] for i in left if i >= cut], [self.receives[i] for i in left if i < cut]


class _Part:
    def __init__(self, torch: Any, buffer: Buffer, message: Message, *, writes: bool) -> None:
        if not isinstance(buffer, np.ndarray):
            raise TopocommError(f"gloo moves host memory, got {type(buffer).__name__}; copy the value to the CPU")
        self.message = message
        self._views = [buffer[offset : offset + length] for offset, length in message.ranges]
        self._staged = len(self._views) != 1 or not (writes or buffer.flags.writeable)
        self._memory = np.empty(message.payload_bytes, np.uint8) if self._staged else self._views[0]
        self.tensor = torch.from_numpy(self._memory)

    def gather(self) -> None:
        if self._staged and self._views:
            np.concatenate(self._views, out=self._memory)

    def scatter(self) -> None:
        if self._staged:
            for view, end in zip(self._views, accumulate(view.size for view in self._views), strict=True):
                view[...] = self._memory[end - view.size : end]


class TorchGroupTransport(Transport):
    """One rank of a process group, set up by a part of a key-value store for this transport alone; collective.

    Raises:
        TopocommError: The ranks cannot be connected.
    """

    name = "torch"
    most_tag = BREAK_TAG - 1

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        self.torch = load_torch()
        self.rank, self.size = rank, size
        self.hosts = tuple(range(size))
        self._store, self._timeout_s = store, timeout_s
        self.helpers = Helpers()
        try:
            limit = timedelta(seconds=timeout_s)
            self.gloo: Any = self.torch.distributed.ProcessGroupGloo(store, rank, size, limit)
        except RuntimeError as error:
            raise TopocommError(
                f"rank {rank}: gloo cannot connect the {size} ranks: {str(error).splitlines()[0]}; "
                "GLOO_SOCKET_IFNAME names the network interface to take"
            ) from error
        self.notes = Notes(self.torch, self.gloo, self.helpers)

    @classmethod
    def of_group(cls, group: ProcessGroup, timeout_s: float) -> TorchGroupTransport:
        """One between the ranks of a group, which is not used for traffic.

        Raises:
            DeadlineError: Not all ranks come in time.
            TopocommError: The ranks cannot be connected.
        """
        transport = cls(_own_store(load_torch(), group, timeout_s), group.rank(), group.size(), timeout_s)
        transport.device_group = group
        return transport

    def batch(self, buffer: Buffer, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Batch:
        return TorchBatch(self, buffer, sends, receives, tag)

    def post(self, peer: int, tag: int, data: bytes) -> None:
        self.notes.post(peer, tag, data)

    def take(self, peer: int, tag: int) -> bytes | None:
        return self.notes.inbox.take(peer, tag)

    def pause(self) -> None:
        self.notes.inbox.pause(TURN_S)

    def subset(self, members: Sequence[int], number: int) -> TorchGroupTransport | None:
        return self._among(members, f"subset {number} of {min(members)}") if members else None

    def shrink(self, members: Sequence[int], number: int) -> TorchGroupTransport:
        return self._among(members, f"shrunk {number} to {members}")

    def close(self, timeout_s: float) -> bool:
        del timeout_s
        self.notes.close()
        self.gloo = None
        return True

    def _among(self, members: Sequence[int], name: str) -> TorchGroupTransport:
        store = self.torch.distributed.PrefixStore(name, self._store)
        return TorchGroupTransport(store, members.index(self.rank), len(members), self._timeout_s)


def _own_store(torch: Any, group: ProcessGroup, timeout_s: float) -> Any:
    """Return a part of the group's store for one communicator, after all ranks have come.

    All ranks make their communicators in the same order, and none is made before all have come to it: the number
    of arrivals says which one this is.
    """
    store = group.get_group_store()
    size = group.size()
    number = (store.add("topocomm/arrivals", 1) - 1) // size
    until_s = time.monotonic() + timeout_s
    while (here := store.add("topocomm/arrivals", 0) - number * size) < size:
        if time.monotonic() > until_s:
            raise DeadlineError(
                f"rank {group.rank()}: Communicator.from_torch is collective, and only {here} of {size} ranks have "
                f"called it within {timeout_s:g} s (limit: TOPOCOMM_TIMEOUT_S)"
            )
        time.sleep(ARRIVALS_TURN_S)
    return torch.distributed.PrefixStore(f"topocomm/{number}", store)


HOW_TO = "call torch.distributed.init_process_group('gloo') first, or topocomm.init(), which does it under torchrun"


def process_group(group: Any) -> Any:
    """Return the ProcessGroup of the argument: a group, a 1-D DeviceMesh, or None for the default group.

    Raises:
        MissingExtraError: torch is missing.
        TopocommError: There is no such group, this process is not in it, or it has no backend for host memory.
    """
    dist = load_torch().distributed
    from torch.distributed.device_mesh import DeviceMesh

    where = "Communicator.from_torch"
    if not dist.is_initialized():
        raise TopocommError(f"{where}: torch.distributed is not initialised; {HOW_TO}")
    if group is None:
        group = dist.group.WORLD
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise TopocommError(
                f"{where}: expected a 1-D DeviceMesh, got one of shape {tuple(group.shape)}; "
                f"pass one dimension of it: mesh[name], name one of {group.mesh_dim_names}"
            )
        group = group.get_group()
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise TopocommError(
            f"{where}: this process, rank {dist.get_rank()} of the default group, is not a member of the group; "
            "only its members make the call"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise TopocommError(
            f"{where}: expected a torch.distributed.ProcessGroup, a 1-D DeviceMesh or None, got {type(group).__name__}"
        )
    backends = str(dist.get_backend_config(group))
    if "cpu" not in [part.split(":")[0] for part in backends.split(",")]:
        raise TopocommError(
            f"{where}: the group has only the backend {backends}, and values go through host memory here; "
            "pass torch.distributed.new_group(backend='gloo')"
        )
    return group

"""The communicator that a caller gives, and what attention keeps prepared for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from attention.gpu.placement import StreamOrder
from topocomm import Communicator, Operator, OperatorError

if TYPE_CHECKING:
    from topocomm import PreparedCall

_of_torch: dict[Any, Communicator] = {}
"""Communicators of process groups and meshes, which live as long as the process."""
PREPARED_LIMIT = 32
"""Prepared calls kept per communicator; the least recently used is freed first, on all ranks alike."""


def as_communicator(function: str, comm: Any) -> Communicator:
    """Return the Communicator itself, or that of an mpi4py communicator, a torch ProcessGroup or a 1-D DeviceMesh.

    Those are wrapped at their first use, which is collective.
    """
    if isinstance(comm, Communicator):
        return comm
    origin = type(comm).__module__.split(".")[0]
    if origin == "torch" and type(comm).__name__.startswith(("ProcessGroup", "DeviceMesh")):
        if comm not in _of_torch:
            _of_torch[comm] = Communicator.from_torch(comm)
        return _of_torch[comm]
    if origin != "mpi4py":
        raise OperatorError(
            f"{function}: comm must be a topocomm.Communicator, an mpi4py communicator, a torch ProcessGroup or a "
            f"1-D DeviceMesh, got {type(comm).__name__}"
        )
    key = _mpi_key()
    known = comm.Get_attr(key)
    if known is None:
        known = Communicator.from_mpi(comm)
        comm.Set_attr(key, known)
    return known  # type: ignore[no-any-return]


@cache
def _mpi_key() -> int:
    """MPI's own key for attributes of communicators: they live as long as the communicator, and Dup drops them."""
    from mpi4py import MPI

    return MPI.Intracomm.Create_keyval()


def state_of(comm: Communicator) -> dict[str, Any]:
    """Return what attention keeps for a communicator, in its `attributes`: it refers back to the communicator."""
    state: dict[str, Any] = comm.attributes.setdefault("attention", {})
    return state


def stream_order_of(comm: Communicator) -> StreamOrder:
    """Return which stream uses the send buffers of prepared calls on a GPU."""
    order: StreamOrder = state_of(comm).setdefault("stream_order", StreamOrder())
    return order


class CachedCalls(OrderedDict[Hashable, "PreparedCall"]):
    """The prepared calls of a communicator, least recently used first.

    Attributes:
        dropped: How many were freed so far; while it stays, every call is still there.
    """

    dropped = 0


def calls_of(comm: Communicator) -> CachedCalls:
    """Return the prepared calls of a communicator."""
    calls: CachedCalls = state_of(comm).setdefault("calls", CachedCalls())
    return calls


def cached_call(comm: Communicator, key: Hashable, prepare: Callable[[], PreparedCall]) -> PreparedCall:
    """Return the prepared call of this key, prepared at its first use."""
    calls = calls_of(comm)
    call = calls.get(key)
    if call is None:
        with torch.inference_mode(False):  # else its buffers could be written in that mode only
            call = calls[key] = prepare()
        if len(calls) > PREPARED_LIMIT:
            calls.popitem(last=False)[1].free()
            calls.dropped += 1
    calls.move_to_end(key)
    return call


def prepared_call(
    comm: Communicator,
    collective: str,
    like: Mapping[str, torch.Tensor],
    operator: Operator | None = None,
    **options: Any,
) -> PreparedCall:
    """Return the prepared call for values of these shapes; collective at the first use of each shape."""
    key = (collective, operator, *options.items(), *((name, x.shape, x.dtype, x.device) for name, x in like.items()))
    return cached_call(comm, key, lambda: comm.prepare(collective, like=dict(like), operator=operator, **options))

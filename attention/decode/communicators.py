"""The communicator that a caller gives, and what attention keeps prepared for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from attention.gpu.placement import StreamOrder
from topocomm import Communicator, Operator, OperatorError

if TYPE_CHECKING:
    import torch

    from topocomm import PreparedCall

_of_torch: dict[Any, Communicator] = {}
"""Communicators of process groups and meshes, which live as long as the process."""
PREPARED_LIMIT = 32
"""Prepared calls kept per communicator; the one unused for longest goes first, on all ranks alike."""


def as_communicator(function: str, comm: Any) -> Communicator:
    """The Communicator itself, or that of an mpi4py communicator, a torch ProcessGroup or a 1-D DeviceMesh.

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
    """What attention keeps for a communicator.

    It lies on the communicator, since it refers back to it: as values of a weak dictionary it would live for ever.
    """
    state: dict[str, Any] = comm.attributes.setdefault("attention", {})
    return state


def turns_of(comm: Communicator) -> StreamOrder:
    """Which streams use the send buffers of prepared calls on a GPU."""
    state = state_of(comm)
    if "turns" not in state:
        state["turns"] = StreamOrder()
    turns: StreamOrder = state["turns"]
    return turns


def prepared(
    comm: Communicator,
    collective: str,
    like: Mapping[str, torch.Tensor],
    operator: Operator | None = None,
    **options: Any,
) -> PreparedCall:
    """The prepared call for values of these shapes; collective at the first use of each shape."""
    key = (collective, operator, *options.items(), *((name, x.shape, x.dtype, x.device) for name, x in like.items()))
    return kept(comm, key, lambda: comm.prepare(collective, like=dict(like), operator=operator, **options))


class KeptCalls(OrderedDict[Hashable, "PreparedCall"]):
    """The prepared calls of a communicator, from the one unused for longest on.

    Attributes:
        dropped: How many were given back so far: as long as it stays, every call is still there.
    """

    dropped = 0


def calls_of(comm: Communicator) -> KeptCalls:
    """The prepared calls of a communicator."""
    calls: KeptCalls = state_of(comm).setdefault("calls", KeptCalls())
    return calls


def kept(comm: Communicator, key: Hashable, make: Callable[[], PreparedCall]) -> PreparedCall:
    """The prepared call that is kept under this key, made at its first use."""
    calls = calls_of(comm)
    call = calls.get(key)
    if call is None:
        call = calls[key] = make()
        if len(calls) > PREPARED_LIMIT:
            calls.popitem(last=False)[1].free()
            calls.dropped += 1
    calls.move_to_end(key)
    return call


def prepared_allreduce(comm: Communicator, like: Mapping[str, torch.Tensor], operator: Operator) -> PreparedCall:
    """`prepared` for an all-reduce."""
    return prepared(comm, "allreduce", like, operator)

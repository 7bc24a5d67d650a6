"""The process group that torch.distributed, DDP, FSDP and DTensor call: collectives on plans, messages over gloo.

torch calls some methods from Python and some from C++, under names that differ between its versions: the older names
are aliases at the end of the class. A method that is not here is that of the gloo group below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from topocomm.errors import OperatorError, RankFailedError, TopocommError
from topocomm.execute.communicator import Communicator
from topocomm.operators.builtin import SUM
from topocomm.torch.group_calls import GroupCalls
from topocomm.torch.issue_order import IssueOrder
from topocomm.torch.other_devices import OtherDevices
from topocomm.torch.point_to_point import Messages
from topocomm.torch.reduce_ops import SUM_KIND
from topocomm.torch.values import number_view
from topocomm.torch.work import DONE, CallWork, MessageWork

HOST = torch.device("cpu")
UNSET = timedelta(milliseconds=-1)
"""What torch's options hold where no time limit is given."""
SHORT_BYTES = 64 << 10
"""Bytes of results up to which a call takes microseconds rather than milliseconds."""


class TopocommProcessGroup(dist.ProcessGroup):
    """A group of ranks. Collective calls raise TopocommErrors; after one the group takes no calls any more.

    Attributes:
        communicator: What the group's collectives run on; for a program's own calls take `Communicator.from_torch`.
    """

    def __init__(self, store: c10d.Store, communicator: Communicator, timeout: timedelta) -> None:
        rank, size = communicator.rank, communicator.size
        super().__init__(rank, size)  # type: ignore[call-arg]  # what C++ calls methods of has no store
        self.communicator = communicator
        self._store, self._session = store, communicator.session
        self._calls = GroupCalls(communicator.session)
        self._order = IssueOrder(f"calls of rank {rank}")
        self._issued = 0
        self._sum = _bind_sum(self._order, self._calls.run)
        self._waiting = communicator.session.waiting
        self._messages = Messages(c10d.PrefixStore("topocomm/messages", store), rank, size, self._waiting)
        self._others = OtherDevices(c10d.PrefixStore("topocomm/devices", store), rank, size, timeout)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self._register_backend(HOST, dist.ProcessGroup.BackendType.CUSTOM, self._messages)

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "topocomm"

    def get_group_store(self) -> c10d.Store:
        """Return the key-value store of the group."""
        return self._store

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Reduce in place: `[tensor], AllreduceOptions`, or `tensor, op`."""
        if self._sum(tensors, opts):
            self._issued += 1
            return DONE
        tensor, opts = _only(tensors), _options(opts, c10d.AllreduceOptions, timeout)
        if not tensor.is_cpu:
            return self._elsewhere(tensor).allreduce([tensor], opts)
        op = opts.reduceOp
        return self._issue(lambda: self._calls.allreduce(tensor, op), [tensor], opts, "all_reduce")

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduce all tensors in place."""
        opts, first = _options(opts, c10d.AllreduceCoalescedOptions), _first(tensors)
        if not first.is_cpu:
            return self._elsewhere(first).allreduce_coalesced(tensors, opts)
        op = opts.reduceOp
        call = lambda: self._calls.allreduce_coalesced(tensors, op)  # noqa: E731
        return self._issue(call, tensors, opts, "all_reduce_coalesced")

    def reduce(  # type: ignore[override]
        self, tensors: Any, opts: Any = None, op: Any = SUM_KIND, timeout: timedelta | None = None, *, root: int = 0
    ) -> Any:
        """Reduce to a root, in place: `[tensor], ReduceOptions`, or `tensor, root, op`."""
        tensor, opts = _only(tensors), _rooted(opts, root, c10d.ReduceOptions, timeout, op)
        if not tensor.is_cpu:
            return self._elsewhere(tensor).reduce([tensor], opts)
        op, root = opts.reduceOp, opts.rootRank
        return self._issue(lambda: self._calls.reduce(tensor, op, root), [tensor], opts, "reduce")

    def broadcast(  # type: ignore[override]
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int = 0
    ) -> Any:
        """Write the root's tensor to all: `[tensor], BroadcastOptions`, or `tensor, root`."""
        tensor, opts = _only(tensors), _rooted(opts, root, c10d.BroadcastOptions, timeout)
        if not tensor.is_cpu:
            return self._elsewhere(tensor).broadcast([tensor], opts)
        root = opts.rootRank
        return self._issue(lambda: self._calls.broadcast(tensor, root), [tensor], opts, "broadcast")

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        """Write all ranks' tensors to one, one after the other."""
        opts = _options(opts, c10d.AllgatherOptions)
        if not tensor.is_cpu:
            return self._elsewhere(tensor)._allgather_base(output, tensor, opts)
        call = lambda: self._calls.all_gather_single(output, tensor)  # noqa: E731
        return self._issue(call, [output], opts, "all_gather_into_tensor")

    def allgather(  # type: ignore[override]
        self, outputs: Any, tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Write all ranks' tensors to a list: `[[outputs]], [tensor], AllgatherOptions`, or `[outputs], tensor`."""
        tensor, opts = _only(tensors), _options(opts, c10d.AllgatherOptions, timeout)
        if not tensor.is_cpu:
            return self._elsewhere(tensor).allgather(outputs, tensors, opts)
        places = _only(outputs) if isinstance(tensors, (list, tuple)) else outputs
        return self._issue(lambda: self._calls.allgather(places, tensor), places, opts, "all_gather")

    def allgather_coalesced(self, outputs: Any, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Write all ranks' lists of tensors to `outputs[rank]`."""
        opts, first = _options(opts, c10d.AllgatherOptions), _first(tensors)
        if not first.is_cpu:
            return self._elsewhere(first).allgather_coalesced(outputs, tensors, opts)

        def call() -> None:
            for index, tensor in enumerate(tensors):
                self._calls.allgather([places[index] for places in outputs], tensor)

        return self._issue(call, outputs, opts, "all_gather_coalesced")

    def all_gather_single_coalesced(self, outputs: Any, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """As `all_gather_single`, of several tensors."""
        opts, first = _options(opts, c10d.AllgatherOptions), _first(tensors)
        if not first.is_cpu:
            return self._elsewhere(first).allgather_into_tensor_coalesced(outputs, tensors, opts)

        def call() -> None:
            for output, tensor in zip(outputs, tensors, strict=True):
                self._calls.all_gather_single(output, tensor)

        return self._issue(call, outputs, opts, "all_gather_into_tensor")

    def gather(  # type: ignore[override]
        self, outputs: Any, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int = 0
    ) -> Any:
        """Write all ranks' tensors to a list on the root: `[[outputs]] or [], [tensor], GatherOptions`."""
        tensor, opts = _only(tensors), _rooted(opts, root, c10d.GatherOptions, timeout)
        if not tensor.is_cpu:
            return self._elsewhere(tensor).gather(outputs, tensors, opts)
        root = opts.rootRank
        places = (_only(outputs) if isinstance(tensors, (list, tuple)) else outputs) if outputs else []
        return self._issue(lambda: self._calls.gather(places, tensor, root), places, opts, "gather")

    def scatter(  # type: ignore[override]
        self, outputs: Any, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int = 0
    ) -> Any:
        """Write the root's list of tensors to all ranks: `[output], [[tensors]] or [], ScatterOptions`."""
        output, opts = _only(outputs), _rooted(opts, root, c10d.ScatterOptions, timeout)
        if not output.is_cpu:
            return self._elsewhere(output).scatter(outputs, tensors, opts)
        root = opts.rootRank
        parts = (_only(tensors) if isinstance(outputs, (list, tuple)) else tensors) if tensors else []
        return self._issue(lambda: self._calls.scatter(output, parts, root), [output], opts, "scatter")

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        """Write this rank's part of the reduction of a tensor."""
        opts = _options(opts, c10d.ReduceScatterOptions)
        if not tensor.is_cpu:
            return self._elsewhere(tensor)._reduce_scatter_base(output, tensor, opts)
        op = opts.reduceOp
        call = lambda: self._calls.reduce_scatter_single(output, tensor, op)  # noqa: E731
        return self._issue(call, [output], opts, "reduce_scatter_tensor")

    def reduce_scatter(self, outputs: Any, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Write this rank's part of a list's reduction: `[output], [[tensors]], opts`, or `output, [tensors], op`."""
        output, opts = _only(outputs), _options(opts, c10d.ReduceScatterOptions, timeout)
        if not output.is_cpu:
            return self._elsewhere(output).reduce_scatter(outputs, tensors, opts)
        parts = _only(tensors) if isinstance(outputs, (list, tuple)) else tensors
        op = opts.reduceOp
        return self._issue(lambda: self._calls.reduce_scatter(output, parts, op), [output], opts, "reduce_scatter")

    def reduce_scatter_single_coalesced(self, outputs: Any, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """As `reduce_scatter_single`, of several tensors."""
        opts, first = _options(opts, c10d.ReduceScatterOptions), _first(tensors)
        if not first.is_cpu:
            return self._elsewhere(first).reduce_scatter_tensor_coalesced(outputs, tensors, opts)
        op = opts.reduceOp

        def call() -> None:
            for output, tensor in zip(outputs, tensors, strict=True):
                self._calls.reduce_scatter_single(output, tensor, op)

        return self._issue(call, outputs, opts, "reduce_scatter_tensor")

    def all_to_all_single(  # type: ignore[override]
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_counts: Sequence[int],
        counts: Sequence[int],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Send entries of axis 0 to all ranks; empty counts: equal parts."""
        opts = _options(opts, c10d.AllToAllOptions, timeout)
        if not tensor.is_cpu:
            return self._elsewhere(tensor).alltoall_base(output, tensor, output_counts, counts, opts)
        got, sent = list(output_counts), list(counts)
        call = lambda: self._calls.all_to_all_single(output, tensor, got, sent)  # noqa: E731
        return self._issue(call, [output], opts, "all_to_all_single")

    def alltoall(  # type: ignore[override]
        self,
        outputs: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Send `tensors[r]` to rank r."""
        opts = _options(opts, c10d.AllToAllOptions, timeout)
        if tensors and not tensors[0].is_cpu:
            return self._elsewhere(tensors[0]).alltoall(outputs, tensors, opts)
        return self._issue(lambda: self._calls.alltoall(outputs, tensors), outputs, opts, "all_to_all")

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:  # type: ignore[override]
        """Return, or be through, when all ranks have called it."""
        opts = _options(opts, c10d.BarrierOptions, timeout)
        device = opts.device
        if device is not None and device.type != "cpu":
            return self._elsewhere(device).barrier(opts)
        return self._issue(self._calls.barrier, [], opts, "barrier")

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        """Begin to send a tensor to a rank."""
        tensor = _only(tensors)
        if not tensor.is_cpu:
            return self._elsewhere(tensor).send([tensor], peer, tag)
        return self._messages.send_tensor(tensor, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        """Begin to receive a tensor from a rank."""
        tensor = _only(tensors)
        if not tensor.is_cpu:
            return self._elsewhere(tensor).recv([tensor], peer, tag)
        return self._messages.receive_tensor(tensor, peer, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> MessageWork:
        """Begin to receive a tensor from whichever rank sends one with this tag."""
        return self._messages.receive_tensor(_only(tensors), None, tag)

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: all ranks count from 0."""

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collective calls this rank has issued on the group."""
        return self._issued

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of every wait from now on."""
        self._messages._set_default_timeout(timeout)

    def shutdown(self) -> None:
        """Leave the group when the calls issued are done; what `destroy_process_group` calls on all ranks."""
        if self._session.open:
            self._order.drain()
        self._order.close()
        self._calls.close()
        with suppress(TopocommError):  # the others may have ended, or failed: nobody waits for this rank
            self.communicator.close()
        self._others.close()

    def abort(self) -> None:
        """Leave the group at once; other ranks that wait for this one are told."""
        self._session.fail(RankFailedError(f"rank {self._session.rank}: this group was aborted"))
        self._order.close()

    def _get_backend(self, device: torch.device) -> Any:
        if device.type == "cpu":
            return self._messages
        return self._elsewhere(device)._get_backend(device)

    def _issue(self, call: Callable[[], None], outputs: Sequence[Any], opts: Any, what: str) -> Any:
        """Make a call now where the program waits for it, else issue it; return torch's handle."""
        self._issued += 1
        if opts.timeout != UNSET:
            call = self._limited(call, opts.timeout)
        if opts.asyncOp:
            issued = self._order.issue(call, is_short=_is_short(outputs))
            return CallWork(self._order, issued, outputs, f"rank {self._session.rank}: {what}")
        self._order.run(call)
        return DONE

    def _limited(self, call: Callable[[], None], timeout: timedelta) -> Callable[[], None]:
        def run() -> None:
            with self._limit(timeout.total_seconds()):
                call()

        return run

    @contextmanager
    def _limit(self, limit_s: float) -> Any:
        waiting = self._waiting
        before = waiting.timeout_s, waiting.limit
        waiting.timeout_s, waiting.limit = limit_s, "this call's timeout"
        try:
            yield
        finally:
            waiting.timeout_s, waiting.limit = before

    def _elsewhere(self, place: torch.Tensor | torch.device) -> Any:
        device = place.device if isinstance(place, torch.Tensor) else place
        try:
            config = str(dist.get_backend_config(self))
        except ValueError:  # torch is still making the group
            config = f"{device.type}:{dist.Backend.default_device_backend_map.get(device.type)}"
        return self._others.group(device, config)

    # Names of earlier versions of torch, which C++ looks for there.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]


def _bind_sum(order: IssueOrder, run: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], bool]:
    """Return what makes all_reduces as most programs make them, in C, and says whether it did."""
    try:
        from topocomm.native._native import bind_group_sum
    except ImportError:
        return lambda tensors, opts: False
    turn = order.turn.acquire, order.turn.release
    return bind_group_sum(c10d.AllreduceOptions, UNSET, SUM_KIND, number_view, order.left, *turn, run, SUM)


def _is_short(outputs: Sequence[Any]) -> bool:
    """Return whether a call with these results takes microseconds rather than milliseconds."""
    return not outputs or (isinstance(outputs[0], torch.Tensor) and sum(map(_bytes, outputs)) <= SHORT_BYTES)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _only(tensors: Any) -> Any:
    """Return the one tensor, or the one list, that torch passes in a list."""
    if not isinstance(tensors, (list, tuple)):
        return tensors
    if len(tensors) != 1:
        raise OperatorError(f"expected one tensor a rank, got {len(tensors)}; torch's coalesced calls take several")
    return tensors[0]


def _options(opts: Any, kind: Any, timeout: timedelta | None = None) -> Any:
    """Return options of a kind: those given, or new ones with an operator in their place."""
    if isinstance(opts, kind):
        return opts
    made = kind()
    if opts is not None:
        made.reduceOp = opts
    if timeout is not None:
        made.timeout = timeout
    return made


def _first(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the first of several tensors."""
    if not tensors:
        raise OperatorError("expected tensors, got an empty list")
    return tensors[0]


def _rooted(opts: Any, root: int, kind: Any, timeout: timedelta | None, op: Any = None) -> Any:
    """Return options of a kind: those given, or new ones with a root in their place."""
    if isinstance(opts, kind):
        if tensor := getattr(opts, "rootTensor", 0):
            raise OperatorError(f"expected one tensor a rank, which is root tensor 0, got root tensor {tensor}")
        return opts
    made = _options(op, kind, timeout)
    made.rootRank = root if opts is None else opts
    return made

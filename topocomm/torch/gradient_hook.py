"""Gradients of DistributedDataParallel on a communicator's plans, whatever backend the process group has.

`model.register_comm_hook(comm, ddp_hook)`: everything else of the program stays on its gloo or NCCL. A hook is called
in the backward pass, once a bucket. Buckets in host memory are reduced on a thread, while the pass goes on, and at its
end on the thread that waits for them; those of a device on a stream of their own.
"""

import weakref
from typing import Any, Literal

import torch
from torch._C._distributed_c10d import GradBucket

from topocomm.errors import TopocommError
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.communicator import Communicator
from topocomm.operators.builtin import SUM
from topocomm.torch.issue_order import Issued, IssueOrder
from topocomm.torch.work import settle

Future = torch.futures.Future[torch.Tensor]
ORDERS = ("any", "canonical")
SHORT_BYTES = 64 << 10
"""Bytes of a bucket up to which its call takes microseconds rather than milliseconds."""
NO_BACKWARD = -1
"""What torch answers for the number of the backward pass where there is none."""


class HookState:
    """What `ddp_hook` reduces on: a communicator of the ranks of the model's process group, for nothing else meanwhile.

    Args:
        comm: The communicator; `Communicator.from_torch(group)` makes one.
        order: "any", or "canonical": one tree over the ranks, whatever the machine, the plan and the transport, so that
            the same ranks' gradients give the same bits wherever the ranks sit.
        wire_dtype: Of the values that travel, such as torch.bfloat16, which are rounded to it and back; None: the
            gradients' own.

    Raises:
        TopocommError: An argument is something else.
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        order: Literal["any", "canonical"] = "any",
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(comm, Communicator):
            raise TopocommError(
                f"ddp_hook: expected a topocomm.Communicator as the state, got {type(comm).__name__}; "
                "Communicator.from_torch(group) makes one of the model's process group"
            )
        if order not in ORDERS:
            raise TopocommError(f"HookState: order {order!r}: expected one of {', '.join(ORDERS)}")
        if wire_dtype is not None and not (isinstance(wire_dtype, torch.dtype) and wire_dtype.is_floating_point):
            raise TopocommError(f"HookState: wire_dtype {wire_dtype!r}: expected a floating torch dtype or None")
        self.communicator, self.order, self.wire_dtype = comm, order, wire_dtype
        self._calls = IssueOrder(f"gradients of rank {comm.rank}")
        weakref.finalize(self, self._calls.close).atexit = False  # at the end of the process it closes itself
        self._prepared: dict[tuple[int, torch.dtype, torch.device], PreparedCall] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def average(self, value: torch.Tensor, *, is_last: bool = False) -> Future:
        """Begin to average a flat tensor over the ranks, in place; return its future. Collective.

        Inside a backward pass errors are raised by that pass, on every rank; else by the future's `wait`. `is_last`
        says that little of the pass is left, which is then likely to wait for it before the thread makes it.
        """
        if value.device.type != "cpu":
            return self._on_device(value)
        self._scale(value)
        future: Future = torch.futures.Future()
        in_backward = torch._C._current_graph_task_id() != NO_BACKWARD
        soon_awaited = value.nbytes <= SHORT_BYTES or (is_last and in_backward)
        issued = self._calls.issue(lambda: self._reduce(value), is_short=soon_awaited)
        issued.then(lambda: settle(future, issued, value))
        if in_backward:
            # Runs before DDP's own end of the pass, where an error would lose its kind.
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._finish(issued))
        return future

    def _finish(self, issued: Issued) -> None:
        """Return when a call is done, which is made here if nobody has begun it; raise what it raised."""
        self._calls.wait(issued)
        if issued.error is not None:
            raise issued.error

    def _scale(self, value: torch.Tensor) -> None:
        """Divide before the sum, as DDP does: sums of short floats overflow. By the program's own threads of torch."""
        value.mul_(1.0 / self.communicator.size)

    def _reduce(self, value: torch.Tensor) -> None:
        if self.wire_dtype is None or self.wire_dtype == value.dtype:
            self._add(value)
            return
        sent = value.to(self.wire_dtype)
        self._add(sent)
        value.copy_(sent)

    def _add(self, value: torch.Tensor) -> None:
        if self.order == "any":
            self.communicator.allreduce(value, SUM, out=value)
            return
        key = value.numel(), value.dtype, value.device
        if key not in self._prepared:  # a plain call would exchange the ranks' ranges of shards each time
            call = self.communicator.prepare("allreduce", like=value, operator=SUM, order="canonical")
            self._prepared[key] = call
        self._prepared[key](value, out=value)

    def _on_device(self, value: torch.Tensor) -> Future:
        """Enqueue the call on a stream of its own, so that the backward pass goes on beside it."""
        device = value.device
        stream = self._streams.get(device) or self._streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        self._calls.drain()  # of a model on several devices
        with torch.cuda.stream(stream):
            self._scale(value)
            self._reduce(value)
            future: Future = torch.futures.Future(devices=[device])
            future.set_result(value)  # marks the place in the stream, for which DDP's own stream waits
        value.record_stream(stream)
        return future


def ddp_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ranks: `model.register_comm_hook(comm, ddp_hook)`.

    The results are those of DDP without a hook, with sums in the order of the communicator's plan. torch's wrappers
    of hooks take it: `fp16_compress_wrapper(ddp_hook)`.

    Args:
        state: A Communicator of the ranks of the model's process group, or a `HookState` of one.
        bucket: DDP's; float32, float64, bfloat16 or float16.

    Raises:
        TopocommError: The state is something else.
        DeadlineError, MismatchError, RankFailedError: As for any call, from `backward`.
    """
    return _state_of(state).average(bucket.buffer().detach(), is_last=bucket.is_last())


def _state_of(state: Any) -> HookState:
    """Return the state itself, or the one kept with a communicator."""
    if isinstance(state, HookState):
        return state
    if not isinstance(state, Communicator):
        return HookState(state)  # raises, and says what is expected
    if HookState not in state.attributes:
        state.attributes[HookState] = HookState(state)
    kept: HookState = state.attributes[HookState]
    return kept

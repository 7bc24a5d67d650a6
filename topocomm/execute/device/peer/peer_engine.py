"""An engine inside a host: the whole call is one kernel, which writes to the memories of the other ranks.

The kernel reads the caller's tensors and writes the result to the caller's; a value is copied first only where its
memory is not what the kernel can read, or lies under the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any

from topocomm.errors import TopocommError
from topocomm.execute.device.device_engine import StreamEngine
from topocomm.execute.device.device_folds import DeviceNodes
from topocomm.execute.device.device_library import ALIGNMENT_BYTES, Device
from topocomm.execute.device.device_values import overlap, place_of
from topocomm.execute.device.peer.peer_memory import PeerMemory
from topocomm.execute.device.peer.peer_program import PeerProgram, peer_program
from topocomm.execute.host.call_engine import Span, Work
from topocomm.operators.kernels.gpu import takes, usable
from topocomm.operators.tensors import torch_dtype

MOST_BYTES = 256 << 10
"""Longer payloads go by NCCL, which uses the links better. Of four V100 without NVLink others report a one-shot push
ahead of NCCL at 128 KiB and behind it at 384 KiB; we have not measured it."""
LOAD_BYTES = 16
"""Of the caller's memory: the most that one thread of a GPU loads at once."""


class PeerPlan:
    """How the peer kernel runs a call; `refusal` is why it cannot, the same on all ranks, or empty."""

    def __init__(self, work: Work, peer: PeerMemory, device_type: str) -> None:
        from topocomm.operators.kernels.peer import PeerCase, peer_options

        self.work = work
        self.refusal = ""
        payload_bytes = work.layout.packed_bytes(work.layout.rows)
        folds = bool(len(work.schedule.combines))
        if payload_bytes > MOST_BYTES:
            self.refusal = f"{payload_bytes} bytes are more than {MOST_BYTES}"
        elif folds and usable(work.operator, work.layout, device_type) is None:
            self.refusal = f"no kernel folds {work.operator.name}"
        elif not takes(work.layout, device_type):
            self.refusal = "its dtypes are none of a kernel's"
        if self.refusal:
            return
        self.program: PeerProgram = peer_program(work)
        rows = [count for _, count in work.parts]
        case = PeerCase(rows, self.program.rows, self.program.operands, peer.size, work.synchronises)
        self.options = peer_options(work.operator, work.layout, case, peer.backend)
        self.tiles = -(-max(rows, default=0) // self.options["ROWS"])
        self.items = self.tiles * len(rows)
        room, stages = peer.room, self.program.stages
        if self.program.arena_bytes > room.arena_bytes:
            self.refusal = f"a rank needs {self.program.arena_bytes} bytes, there are {room.arena_bytes}"
        elif self.items * stages * peer.size > room.flags:
            self.refusal = f"{self.items} tiles in {stages} stages need more than {room.flags} flags"


class PeerEngine(StreamEngine):
    """One call by the peer kernel."""

    def __init__(self, plan: PeerPlan, device: Device, peer: PeerMemory, shards: Sequence[int] | None) -> None:
        work = plan.work
        super().__init__(work, device, peer, plan.program.receivers, plan.program.senders)
        self._peer = peer
        self._nodes = None if shards is None else DeviceNodes(work, shards, device)
        self.takes_value = bool(len(work.schedule.inputs_of(work.rank)))
        self.gives_result = bool(len(work.schedule.outputs_of(work.rank)))
        self.memory, self._sent = _fields(work, work.value if self.takes_value else Span(0, (0,)), device)
        self._result_memory, self._result = _fields(work, work.result if self.gives_result else Span(0, (0,)), device)
        views = self.takes_value and self._nodes is None and work.value.rows
        self.views = self._sent if views else None
        self._launch = self._bind(plan)

    def begin(self, fields: Mapping[str, Any] | None, target: Mapping[str, Any] | None, apart: bool) -> bool:
        del apart  # the memories are looked at; targets are contiguous
        peer, stream = self._peer, self._device.stream()
        if peer.crowded and not self._device.pointer(stream):
            raise TopocommError(
                f"rank {peer.rank}: ranks that share a GPU wait for each other there, so each needs a stream of its "
                "own; call with torch.cuda.stream(torch.cuda.Stream())"
            )
        memories = (self.memory, self._result_memory, *(() if self._nodes is None else self._nodes.memories))
        self.follow(self.last, stream, memories)
        if peer.last is not None and peer.last != self.last:
            self.follow(peer.last, stream, ())
        if not self._device.capturing():
            self.last = peer.last = stream
        if fields is not None and self._nodes is not None:
            fields = self._nodes.fold(fields)
        result = self._result if target is None or self._identity is not None else _readable(target, self._result)
        self._launch(self._value(fields, result), result)
        if target is not None:
            source = self._result if self._identity is None else self._identity
            for name, tensor in target.items():
                if result[name] is not tensor:
                    tensor.copy_(source[name])
        return False

    def load(self) -> None:
        super().load()  # the peer kernel itself was loaded when it was bound
        if self._nodes is not None:
            self._nodes.load()

    def advance(self, timeout_s: float) -> bool:
        """As `StreamEngine.advance`; a kernel that ends since a wait took its time is not through."""
        through = super().advance(timeout_s)
        self.check()
        return through

    def _value(self, fields: Mapping[str, Any] | None, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """The value where the kernel can read it while it writes the result."""
        if fields is None:
            return self._sent
        value, in_place = _readable(fields, self._sent), self._work.value == self._work.result
        apart = all(
            (in_place and name == target_name and x.data_ptr() == target.data_ptr() and x.numel() == target.numel())
            or not overlap([place_of(x)], [place_of(target)])
            for name, x in value.items()
            for target_name, target in result.items()
        )
        for name, tensor in fields.items():
            if not apart or value[name] is not tensor:
                self._sent[name].copy_(tensor.reshape(self._sent[name].shape))
        return value if apart else self._sent

    def _bind(self, plan: PeerPlan) -> Callable[[Mapping[str, Any], Mapping[str, Any]], None]:
        """What launches the kernel for a value and a result; the kernel is compiled and loaded by then."""
        if not self._work.layout.packed_bytes(self._work.layout.rows):
            return lambda value, result: None
        import torch

        from topocomm.operators.kernels.gpu_peer import peer_kernel
        from topocomm.operators.kernels.launcher import load_kernel

        peer = self._peer
        self._words = torch.from_numpy(plan.program.words).to(self._device.place)
        addresses = self._words.data_ptr(), peer.table.data_ptr(), peer.own, peer.control
        sizes = peer.rank, peer.size, peer.room.arenas_at, peer.room.arena_bytes, plan.program.stages, plan.tiles
        grid = (min(plan.items, peer.programs), 1, 1)

        def arguments(value: Mapping[str, Any], result: Mapping[str, Any], items: int) -> tuple[Any, ...]:
            return (
                tuple(value[name].data_ptr() or peer.own for name in self._sent),
                tuple(result[name].data_ptr() or peer.own for name in self._result),
                *addresses,
                *sizes,
                items,
                peer.limit,
            )

        no_items = arguments(self._sent, self._result, 0)
        launch = load_kernel(peer_kernel, no_items, plan.options)
        launch(grid, *no_items)
        return lambda value, result: launch(grid, *arguments(value, result, plan.items))


def _fields(work: Work, span: Span, device: Device) -> tuple[Any, dict[str, Any]]:
    """Memory for a value or a result, and its fields there as tensors [*leading, *dims]."""
    shapes = [(f, (*span.leading, *f.row_shape)) for f in work.layout.fields]
    sizes = [-(-prod(shape) * f.dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for f, shape in shapes]
    memory = device.memory(max(sum(sizes), 1))
    tensors = {}
    for (field, shape), size, end in zip(shapes, sizes, accumulate(sizes), strict=True):
        raw = memory[end - size :][: prod(shape) * field.dtype.itemsize]
        tensors[field.name] = raw.view(torch_dtype(field.dtype)).view(shape)
    return memory, tensors


def _readable(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Every tensor that lies as the kernel reads and writes, else the one of the same name in `others`."""
    return {
        name: tensor if tensor.is_contiguous() and tensor.data_ptr() % LOAD_BYTES == 0 else others[name]
        for name, tensor in tensors.items()
    }

"""Engines in device memory: the stages of a call put on a stream one after the other, with nothing to wait for here.

A stage is one group of messages, then its folds. Both ends of a message are in the same group, since all ranks cut
their rounds alike: a device waits for all messages of a group before it goes on. What a stream runs it runs in order,
so one arena serves call after call, and no credits are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topocomm.execute.device.device_folds import DeviceFold, DeviceNodes, bind_folds, identity_tensors, load_folds
from topocomm.execute.device.device_library import ALIGNMENT_BYTES, Device, load_copies, reached
from topocomm.execute.device.device_values import overlap, place_of
from topocomm.execute.device.peer.peer_memory import PeerMemory
from topocomm.execute.host.call_engine import CallEngine, Work, messages_of, parts_of_pieces
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.transports.transport import DeviceTransport, Message
from topocomm.operators.tensors import device_views, torch_dtype
from topocomm.planning.program.slot_memory import Stage, common_cuts, rank_program
from topocomm.planning.schedule.schedule import Piece


class StreamEngine(CallEngine):
    """An engine whose steps a stream runs one after the other.

    `begin` puts a call of tensors on the current stream, and returns False: a device says later that it is through.

    Attributes:
        last: The stream that ran it last, or made it.
        ranks: With whom this rank exchanges data.
    """

    memory: Any
    """A tensor of the device: what its arrays lie in."""

    def __init__(
        self,
        work: Work,
        device: Device,
        link: DeviceTransport | PeerMemory,
        sends: Mapping[int, int],
        receives: Mapping[int, int],
    ) -> None:
        self._work, self._device, self._link = work, device, link
        self._peers = [
            [Message(peer, ((0, size),)) for peer, size in sorted(sizes.items())] for sizes in (sends, receives)
        ]
        self.ranks: Sequence[int] = tuple(sorted({*sends, *receives}))
        self._event = device.event()
        self._identity: dict[str, Any] | None = None
        if work.first_of_exscan:
            identity = identity_tensors(work.operator, work.layout)
            self._identity = {name: value.to(device.place) for name, value in identity.items()}
        self.last: Any = device.stream()  # whose memory this is: it may still be in use there

    def check(self) -> None:
        """Raise where it is known that the call does not come through; asks nothing of the device."""
        self._link.check(self.ranks)

    def load(self) -> None:
        """Have the device load all kernels that a call runs."""
        load_copies(self._device, (torch_dtype(field.dtype) for field in self._work.layout.fields))

    def mark(self) -> None:
        """From now on `advance` tells of the calls that were begun so far."""
        self._event.record(self.last)

    def advance(self, timeout_s: float) -> bool:
        """Whether the device is through with what was marked, or is so within about `timeout_s`."""
        return reached(self._event, timeout_s, self.check)

    def awaited(self) -> AwaitedMessages:
        """All that this rank exchanges in the call: a device does not say how far it is."""
        return AwaitedMessages(None, *self._peers)

    def follow(self, before: Any, stream: Any, memories: Sequence[Any]) -> bool:
        """Have the stream wait for the one that used the same memories before; return whether it is another."""
        if before == stream or self._device.capturing():  # no graph waits for what is outside of it
            return False
        event = self._device.event()
        event.record(before)
        stream.wait_event(event)
        for memory in memories:
            self._device.keep(memory, stream)
        return True


Step = Callable[[Any], None]


class DeviceEngine(StreamEngine):
    """The arena of one call and this rank's program on it."""

    def __init__(self, work: Work, device: Device, wire: DeviceTransport, shards: Sequence[int] | None) -> None:
        self._transport = wire
        cuts = common_cuts(work.schedule)
        program = rank_program(work.schedule, work.rank, work.chunk_bytes, ALIGNMENT_BYTES, cuts)
        super().__init__(work, device, wire, *message_bytes(work))
        self.memory: Any = device.memory(max(program.arena_bytes, 1))
        self._offsets = program.offsets
        self._nodes = None if shards is None else DeviceNodes(work, shards, device)
        self._inputs = parts_of_pieces(work, self._piece, program.input_pieces, work.value, value=True)
        self._outputs = parts_of_pieces(work, self._piece, program.output_pieces, work.result, value=False)
        self.takes_value, self.gives_result = bool(program.input_pieces), bool(program.output_pieces)
        self.views: Any = None if self._nodes is not None else self._views(program.input_pieces)
        self._folds: list[tuple[list[DeviceFold], Callable[[], None]]] = []
        self._steps = [step for stage in program.stages for step in self._bind(stage)]

    def load(self) -> None:
        super().load()
        if self._nodes is not None:
            self._nodes.load()
        for folds, run in self._folds:
            load_folds(self._work.operator, self._work.layout, self.memory, folds, run)

    def begin(self, fields: Mapping[str, Any] | None, target: Mapping[str, Any] | None, apart: bool) -> bool:
        del apart  # the value is read before the result is written, to tensors of any strides
        stream = self._device.stream()
        if self.follow(self.last, stream, (self.memory, *(() if self._nodes is None else self._nodes.memories))):
            self.last = stream
        if fields is not None:
            if self._nodes is not None:
                fields = self._nodes.fold(fields)
            rows = self._work.value.rows
            for part in self._inputs:
                part.view.copy_(fields[part.name].reshape(rows, *part.view.shape[1:])[part.rows])
        for step in self._steps:
            step(stream)
        if target is not None:
            self._give(target)
        return False

    def _give(self, target: Mapping[str, Any]) -> None:
        if self._identity is not None:
            for name, value in self._identity.items():
                target[name].copy_(value)
            return
        rows = self._work.result.rows
        for part in self._outputs:
            if part.rows == slice(0, rows):
                target[part.name].copy_(part.view.view(target[part.name].shape))
            else:
                flat = target[part.name].view(rows, *part.view.shape[1:])
                flat[part.rows].copy_(part.view)

    def _bind(self, stage: Stage) -> list[Step]:
        steps: list[Step] = []
        sends, receives = (messages_of(self._work, moves, self._offsets) for moves in (stage.sends, stage.receives))
        if sends or receives:
            steps.append(self._transport.group(self.memory, sends, receives))
        folds = [
            DeviceFold(
                self._work.chunk_rows(fold.chunk),
                tuple(self._offsets[slot, fold.chunk] for slot in fold.operands),
                self._offsets[fold.out_slot, fold.chunk],
            )
            for fold in stage.folds
        ]
        folds = [fold for fold in folds if fold.rows and fold.offsets != (fold.target,)]
        if folds:
            run = bind_folds(self._work, self.memory, folds)
            self._folds.append((folds, run))
            steps.append(lambda stream: run())
        return steps

    def _piece(self, piece: Piece, rows: int) -> Mapping[str, Any]:
        return device_views(self._work.layout, self.memory, self._offsets[piece], rows) if rows else {}

    def _views(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        """The send buffer in the user's shapes, if one piece holds the whole value."""
        value = self._work.value
        if len(pieces) != 1 or self._work.parts[pieces[0][1]][1] != value.rows or not value.rows:
            return None
        return {part.name: part.view.view((*value.leading, *part.view.shape[1:])) for part in self._inputs}


def message_bytes(work: Work) -> tuple[dict[int, int], dict[int, int]]:
    """Return the bytes that this rank sends and receives in messages, by rank."""
    sends: dict[int, int] = {}
    receives: dict[int, int] = {}
    for move in work.schedule.transfers_of(work.rank):
        peer, sizes = (move.dst, sends) if move.src == work.rank else (move.src, receives)
        sizes[peer] = sizes.get(peer, 0) + work.chunk_bytes(move.chunk)
    return sends, receives


class NativeEngine(StreamEngine):
    """One call of a library's collective, which the plan has chosen, on values of one field.

    The library reads the caller's tensor and writes the result to the caller's; a value is copied first only where it
    is not contiguous, or lies in part under the result.
    """

    def __init__(self, work: Work, device: Device, wire: DeviceTransport) -> None:
        super().__init__(work, device, wire, *_dependent_bytes(work))
        native = work.plan.native
        assert native is not None, "chosen"
        run = wire.native(work.plan.collective.name, native.dtype, work.plan.operator)
        assert run is not None, "settled before the ranks agreed"
        self._run = run
        (field,) = work.layout.fields
        size_bytes = work.value.rows * field.row_bytes
        self.memory: Any = device.memory(max(size_bytes, 1))
        self._name = field.name
        shape = (*work.value.leading, *field.row_shape)
        self._sent = self.memory[:size_bytes].view(torch_dtype(field.dtype)).view(shape)
        self.views = {field.name: self._sent}
        self.takes_value = self.gives_result = True

    def begin(self, fields: Mapping[str, Any] | None, target: Mapping[str, Any] | None, apart: bool) -> bool:
        del apart  # the memories are looked at; the target is contiguous
        assert target is not None, "every rank gets a result"
        stream = self._device.stream()
        if self.follow(self.last, stream, (self.memory,)):
            self.last = stream
        result = target[self._name]
        if fields is not None:
            value = fields[self._name]
            in_place = self._work.plan.collective.name == "allreduce" and value.data_ptr() == result.data_ptr()
            if value.is_contiguous() and (in_place or not overlap([place_of(value)], [place_of(result)])):
                self._run(value, result, stream)
                return False
            self._sent.copy_(value)
        self._run(self._sent, result, stream)
        return False


def _dependent_bytes(work: Work) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes of this rank's value that each other rank's result depends on, and the other way round.

    Which ranks exchange messages is the library's own choice; who waits for whom is not.
    """
    name, parts = work.plan.collective.name, work.plan.collective.parts
    row_bytes, rank = work.layout.row_bytes, work.rank
    others = [peer for peer in range(work.plan.collective.ranks) if peer != rank]
    if name == "allreduce":
        whole = dict.fromkeys(others, work.layout.rows * row_bytes)
        return whole, whole
    remote, own = {peer: parts[peer] * row_bytes for peer in others}, dict.fromkeys(others, parts[rank] * row_bytes)
    return (remote, own) if name == "reduce_scatter" else (own, remote)

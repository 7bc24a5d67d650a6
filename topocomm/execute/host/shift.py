"""A neighbour exchange around the ring of ranks, agreed upon once: what ring attention rotates its K/V with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topocomm.errors import OperatorError, TopocommError
from topocomm.execute.device import device_library as devices
from topocomm.execute.device.path_choice import choose_device_path
from topocomm.execute.device.shift import DeviceShift, PinnedShift
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.transports.transport import Batch, Message
from topocomm.operators.layout import Buffer

if TYPE_CHECKING:
    from topocomm.execute.device.device_library import Device
    from topocomm.execute.session import Session


Place = tuple[int, int]
"""Address and bytes of an array."""


class _Messages:
    """A batch as something to wait for."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def advance(self, timeout_s: float) -> bool:
        return self._batch.wait(timeout_s)

    def awaited(self) -> AwaitedMessages:
        return AwaitedMessages(0, *self._batch.pending())


class Shift:
    """Send buffers to rank + 1 while others are filled by rank - 1; made by `Communicator.prepare_shift`."""

    def __init__(self, session: Session, tags: Sequence[int]) -> None:
        self._session = session
        self._tags = tags
        self._number = 0
        self._buffers: tuple[Place, ...] = ()
        """What the batches were made for."""
        self._batches: list[Batch] = []
        self._there: DeviceShift | None = None
        self._pinned: PinnedShift | None = None
        self._device: Device | None = None
        """Of the running exchange."""

    def start(self, sends: Sequence[Any], receives: Sequence[Any]) -> None:
        """Post all; compute while the bytes move, calling `advance` now and then, and `wait`.

        On a device the bytes move on a stream of their own, behind what is on the current one. Tensors that all lie in
        one allocation travel without a copy there.

        Args:
            sends: The messages, one uint8 array each, or uint8 tensors on a device; a neighbour may send others, of
                other lengths.
            receives: Where those of rank - 1 go; as long as they, or longer; on a device exactly as long. Other memory
                than `sends`; both stay as they are until `wait` returns. Requests are kept for a call with the same
                arrays.

        Raises:
            OperatorError: The buffers lie in several memories, or tensors are no dense bytes.
        """
        if not len(sends) == len(receives) == len(self._tags):
            raise TopocommError(
                f"rank {self._session.rank}: this shift was prepared for {len(self._tags)} messages each way, got "
                f"{len(sends)} to send and {len(receives)} to receive"
            )
        device = _device_of(self._session.rank, (*sends, *receives))
        self._session.enter()
        self._number = self._session.recorder.begin(self._tags[0])
        self._device = device
        try:
            if device is not None and self._start_there(device, sends, receives):
                return
            if self._pinned is not None and device is not None:
                sends, receives = self._pinned.start(sends, receives)
            self._make_batches(sends, receives)
            for batch in self._batches:
                batch.start()
        except BaseException as error:
            self._session.fail_with(error)
            raise

    def advance(self) -> None:
        """Let bytes move: many an MPI moves large messages only inside its calls. Does not wait."""
        if self._on_wire:
            return
        for batch in self._batches:
            batch.wait(0.0)

    def wait(self) -> None:
        """Return when what is received is there and what was sent may be written again.

        On a device that is so for what comes later on the current stream; with NCCL the host does not wait.

        Raises:
            DeadlineError, MismatchError, RankFailedError: As for any call.
        """
        try:
            if self._on_wire:
                assert self._there is not None
                self._there.wait()
                return
            for batch in self._batches:
                self._session.waiting.for_call(UnderWay(_Messages(batch), self._tags[0], self._number))
            if self._device is not None and self._pinned is not None:
                self._pinned.wait()
        except BaseException as error:
            self._session.fail_with(error)
            raise
        finally:
            self._session.leave()

    def free(self) -> None:
        """Give back the requests."""
        for batch in self._batches:
            batch.free()
        self._buffers, self._batches = (), []
        if self._there is not None:
            self._there.free()

    @property
    def _on_wire(self) -> bool:
        return self._device is not None and self._there is not None

    def _start_there(self, device: Device, sends: Sequence[Any], receives: Sequence[Any]) -> bool:
        """Begin by the communicator's wire; False where there is none, and host memory has to do."""
        session = self._session
        if session.device_path is None:
            session.device_path = choose_device_path(session, device)
        session.device_path.check(device)
        if session.device_path.transport is None:
            self._pinned = self._pinned or PinnedShift(device, session.settings.timeout_s, session.rank)
            return False
        self._there = self._there or DeviceShift(session, session.device_path, self._tags[0])
        self._there.start(sends, receives, self._number)
        return True

    def _make_batches(self, sends: Sequence[Buffer], receives: Sequence[Buffer]) -> None:
        """Requests for these arrays, unless those of the call before are."""
        buffers = tuple((buffer.ctypes.data, buffer.size) for buffer in (*sends, *receives))
        if self._batches and buffers == self._buffers:
            return
        self.free()
        session = self._session
        after, before = (session.rank + 1) % session.size, (session.rank - 1) % session.size
        batch = session.transport.batch
        self._batches = [  # receives first, so that no message comes unexpected
            batch(buffer, [], [Message(before, ((0, buffer.size),))], tag)
            for buffer, tag in zip(receives, self._tags, strict=True)
        ] + [
            batch(buffer, [Message(after, ((0, buffer.size),))], [], tag)
            for buffer, tag in zip(sends, self._tags, strict=True)
        ]
        self._buffers = buffers


def _device_of(rank: int, buffers: Sequence[Any]) -> Device | None:
    """The device that holds all buffers; None for host memory."""
    held = [devices.device_of(buffer) for buffer in buffers]
    if any(one is not held[0] for one in held):
        raise OperatorError(f"rank {rank}: the buffers of a shift lie in several memories; put all in one")
    if held and held[0] is not None:
        for x in buffers:
            if str(x.dtype) != "torch.uint8" or not x.is_contiguous():
                raise OperatorError(
                    f"rank {rank}: the buffers of a shift must be contiguous torch.uint8 tensors, got {x.dtype} "
                    f"{list(x.shape)}; give x.view(-1).view(torch.uint8)"
                )
    return held[0] if held else None

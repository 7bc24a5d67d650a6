"""A neighbour exchange around the ring of ranks, agreed upon once: what ring attention rotates its K/V with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topocomm.errors import OperatorError, TopocommError
from topocomm.execute.calls.binding import agree
from topocomm.execute.device import device_library as devices
from topocomm.execute.device.path_choice import choose_device_path
from topocomm.execute.device.shift import DeviceShift, PinnedShift
from topocomm.execute.dynamo import skipped_by_dynamo
from topocomm.execute.host.shift import HostShift
from topocomm.execute.transports.transport import AGREEMENT_TAG

if TYPE_CHECKING:
    from topocomm.execute.device.device_library import Device
    from topocomm.execute.session import Session


@skipped_by_dynamo
class Shift:
    """Send buffers to rank + 1 while others are filled by rank - 1; made by `Communicator.prepare_shift`."""

    def __init__(self, session: Session, tags: Sequence[int]) -> None:
        self._session, self._tags = session, tags
        self._in_host = HostShift(session, tags)
        self._on_device: DeviceShift | PinnedShift | None = None
        self._running: HostShift | DeviceShift | PinnedShift = self._in_host

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
        number = self._session.recorder.begin(self._tags[0])
        with self._session.closing_on_error():
            self._running = self._in_host if device is None else self._shift_on(device)
            self._running.start(sends, receives, number)

    def advance(self) -> None:
        """Let bytes move: many an MPI moves large messages only inside its calls. Does not wait."""
        self._running.progress()

    def wait(self) -> None:
        """Return when what is received is there and what was sent may be written again.

        On a device that is so for what comes later on the current stream; with NCCL the host does not wait.

        Raises:
            DeadlineError, MismatchError, RankFailedError: As for any call.
        """
        try:
            with self._session.closing_on_error():
                self._running.wait()
        finally:
            self._session.leave()

    def free(self) -> None:
        """Give back the requests."""
        self._in_host.free()
        if self._on_device is not None:
            self._on_device.free()

    def _shift_on(self, device: Device) -> DeviceShift | PinnedShift:
        """Return the exchange of tensors on a device; by host memory where nothing moves device memory."""
        session = self._session
        if session.device_path is None:
            session.device_path = choose_device_path(session, device)
        session.device_path.check(device)
        if self._on_device is None:
            if session.device_path.transport is None:
                self._on_device = PinnedShift(session, self._in_host, device)
            else:
                self._on_device = DeviceShift(session, session.device_path, self._tags[0])
        return self._on_device


def _device_of(rank: int, buffers: Sequence[Any]) -> Device | None:
    held = [devices.device_of(buffer) for buffer in buffers]
    if any(device is not held[0] for device in held):
        raise OperatorError(f"rank {rank}: the buffers of a shift lie in several memories; put all in one")
    if not held or held[0] is None:
        return None
    for x in buffers:
        if str(x.dtype) != "torch.uint8" or not x.is_contiguous():
            raise OperatorError(
                f"rank {rank}: the buffers of a shift must be contiguous torch.uint8 tensors, got {x.dtype} "
                f"{list(x.shape)}; give x.view(-1).view(torch.uint8)"
            )
    return held[0]


def prepare_shift(session: Session, messages: int) -> Shift:
    """As `Communicator.prepare_shift`; collective."""
    with session.call(AGREEMENT_TAG):
        claim = {"call": f"shift {session.tags_taken} of {messages} messages"}
        agree(session, claim, "the preparation of a shift")
    return Shift(session, [session.next_tag("shift to the next rank") for _ in range(messages)])

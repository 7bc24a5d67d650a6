"""An engine whose call is a library's own collective: no arena, no rounds and no folds of ours.

The library reads the caller's tensor and writes the result to the caller's; a value is copied first only where it is
not contiguous, or lies in part under the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topocomm.execute.device.device_engine import StreamEngine
from topocomm.execute.device.device_library import Device
from topocomm.execute.device.device_values import overlap, place_of
from topocomm.execute.host.call_engine import Work
from topocomm.execute.transports.transport import DeviceTransport
from topocomm.operators.tensors import torch_dtype


class NativeEngine(StreamEngine):
    """One call of a library's collective, which the plan has chosen, on values of one field."""

    def __init__(self, work: Work, device: Device, wire: DeviceTransport) -> None:
        super().__init__(work, device, *_sizes(work))
        native = work.plan.native
        assert native is not None, "chosen"
        run = wire.native(work.plan.collective.name, native.dtype, work.plan.operator)
        assert run is not None, "settled before the ranks agreed"
        self._transport, self._run = wire, run
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

    def check(self) -> None:
        self._transport.check(self.ranks)


def _sizes(work: Work) -> tuple[dict[int, int], dict[int, int]]:
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

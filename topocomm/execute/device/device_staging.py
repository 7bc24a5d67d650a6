"""A prepared call on values in device memory that travel through host memory: one copy each way, and a call there.

So it is where there is no NCCL, where ranks share a GPU, and for operators that nothing folds on a device. The host
waits for the value, so these calls do not run ahead of the device; the copy of the result does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from topocomm.errors import OperatorError, TopocommError
from topocomm.execute.calls.handle import Handle
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.calls.structure import Fields, Structure
from topocomm.execute.device.device_call import DeviceValues, TensorShapes, load_together
from topocomm.execute.device.device_library import Device, await_event, load_copies
from topocomm.execute.device.device_values import Tensors
from topocomm.execute.host.call_engine import Span, Work
from topocomm.execute.host.canonical_nodes import LocalNodes
from topocomm.operators.layout import ALIGNMENT_BYTES
from topocomm.operators.tensors import as_array

if TYPE_CHECKING:
    from topocomm.execute.session import Session


class StagedCall(PreparedCall):
    """A collective made ready for values of one structure on one device, by way of pinned host memory."""

    def __init__(self, session: Session, work: Work, structure: Structure, local: LocalNodes | None) -> None:
        assert structure.device is not None, "made for values on devices"
        self._device = structure.device
        host = replace(structure, device=None, is_torch=False, is_cupy=False, rebuild=dict, bare=False)
        super().__init__(session, work, host, local)
        value = work.value if local is None else Span(0, (local.shards, *work.layout.leading))
        self._on_device = structure
        self._values_on_device = DeviceValues(structure, work.layout, value, work.result)
        self._sent = _Pinned(self._device, self._values_on_device.value)
        self._received = _Pinned(self._device, self._values_on_device.result)
        self._takes = self.engines[0].takes_value
        self._value_copied, self._result_copied = self._device.event(), self._device.event()
        self.fast_path = None
        with self._device.current():
            load_together(
                session,
                lambda: load_copies(self._device, (dtype for _, dtype in self._values_on_device.value.values())),
            )

    @property
    def input(self) -> Any:
        """None: the send buffer is in host memory."""
        return None

    def __call__(self, x: Any = None, *, out: Any = None) -> Any:
        """As `PreparedCall`; the result is there for what comes later on the current stream."""
        value, target = self._fetch(x, out)
        result = super().__call__(value, out=self._received.arrays)
        return None if result is None else self._hand_over(target, out)

    def repeat(self, x: Any, out: Any) -> Any:
        return self(x, out=out)

    def start(self, x: Any = None, *, out: Any = None) -> Handle:
        """As `PreparedCall.start`, when the value has come to host memory."""
        value, target = self._fetch(x, out)
        handle = super().start(value, out=self._received.arrays)
        return StagedHandle(handle, lambda result: None if result is None else self._hand_over(target, out))

    def _fetch(self, x: Any, out: Any) -> tuple[Fields | None, Tensors | None]:
        """Return the value, brought to host memory when the result before has left it, and the tensors of out."""
        session = self._session
        if self._device.capturing():
            raise TopocommError(f"rank {session.rank}: this call goes through host memory, where no graph records it")
        try:
            target = None if out is None or not self._gives else self._values_on_device.writable(out)
            fields = self._values_on_device.read(x, needed=self._takes)
        except OperatorError as error:
            session.refuse(self.tag, error)
            raise
        value = None if fields is None else self._sent.arrays
        if session.refusal is not None:
            session.enter()  # raises, and says why
        if self._handle is not None and not self._handle.done:
            return value, target  # the call itself refuses
        try:
            await_event(self._result_copied, session.waiting, self._device, "this call")
            if fields is not None and self._takes:
                with self._device.current():
                    for name, tensor in fields.items():
                        self._sent.tensors[name].copy_(tensor, non_blocking=True)
                    self._value_copied.record(self._device.stream())
                await_event(self._value_copied, session.waiting, self._device, "this call")
        except BaseException as error:
            session.fail_with(error)
            raise
        return value, target

    def _hand_over(self, target: Tensors | None, out: Any) -> Any:
        with self._device.current():
            tensors = self._values_on_device.empty() if target is None else target
            for name, tensor in tensors.items():
                tensor.copy_(self._received.tensors[name], non_blocking=True)
            self._result_copied.record(self._device.stream())
        return self._on_device.give(tensors) if target is None else out


class StagedHandle(Handle):
    """A staged call under way, whose result goes back to the device when it is asked for."""

    def __init__(self, handle: Handle, hand_over: Callable[[Any], Any]) -> None:
        self._handle, self._hand_over = handle, hand_over
        self._result: Any = None
        self.done = False

    def test(self) -> bool:
        if not self.done and self._handle.test():
            self.wait()
        return self.done

    def wait(self, timeout_s: float | None = None) -> Any:
        if not self.done:
            self._result = self._hand_over(self._handle.wait(timeout_s))
            self.done = True
        return self._result


class _Pinned:
    def __init__(self, device: Device, shapes: TensorShapes) -> None:
        import torch

        self.tensors: Tensors = {}
        for name, (shape, dtype) in shapes.items():
            count = torch.Size(shape).numel()
            memory = device.pinned(max(count * dtype.itemsize, ALIGNMENT_BYTES))
            self.tensors[name] = memory[: count * dtype.itemsize].view(dtype).view(shape)
        self.arrays = {name: as_array(tensor) for name, tensor in self.tensors.items()}

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
from topocomm.execute.calls.structure import Structure
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
        given = work.value if local is None else Span(0, (local.shards, *work.layout.leading))
        self._given = structure
        self._values_on_device = DeviceValues(structure, work.layout, given, work.result)
        self._sent = _Pinned(self._device, self._values_on_device.value)
        self._got = _Pinned(self._device, self._values_on_device.result)
        self._takes = self._engines[0].takes_value
        self._down, self._up = self._device.event(), self._device.event()
        self._copied = False
        """Whether a result's copy was begun, of which `_up` tells the end."""
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
        fields, given = self._fit_tensors(x, out)
        self._fetch(fields)
        result = super().__call__(self._sent.arrays if fields is not None else None, out=self._got.arrays)
        return None if result is None else self._hand_over(given, out)

    def repeat(self, x: Any, out: Any) -> Any:
        return self(x, out=out)

    def start(self, x: Any = None, *, out: Any = None) -> Handle:
        """As `PreparedCall.start`, when the value has come to host memory."""
        fields, given = self._fit_tensors(x, out)
        self._fetch(fields)
        handle = super().start(self._sent.arrays if fields is not None else None, out=self._got.arrays)
        return StagedHandle(handle, lambda result: None if result is None else self._hand_over(given, out))

    def _fit_tensors(self, x: Any, out: Any) -> tuple[Tensors | None, Tensors | None]:
        session = self._session
        if self._device.capturing():
            raise TopocommError(f"rank {session.rank}: this call goes through host memory, where no graph records it")
        try:
            given = None if out is None or not self._gives else self._values_on_device.writable(out)
            if x is None:
                if self._takes:
                    raise OperatorError("x is missing: this rank puts a value in")
                return None, given
            return self._values_on_device.read("x", x, self._values_on_device.value), given
        except OperatorError as error:
            session.refuse(self.tag, error)
            raise

    def _fetch(self, fields: Tensors | None) -> None:
        """Bring the value to host memory; and wait until the result of the call before has left it."""
        session = self._session
        if session.refusal is not None:
            session.enter()  # raises, and says why
        if self._handle is not None and not self._handle.done:
            return  # the call itself refuses
        try:
            if self._copied:
                self._await(self._up)
            if fields is None or not self._takes:
                return
            with self._device.current():
                for name, tensor in fields.items():
                    self._sent.tensors[name].copy_(tensor, non_blocking=True)
                self._down.record(self._device.stream())
            self._await(self._down)
        except BaseException as error:
            session.fail_with(error)
            raise

    def _await(self, event: Any) -> None:
        await_event(event, self._session.settings.timeout_s, self._device, self._session.rank, "this call")

    def _hand_over(self, given: Tensors | None, out: Any) -> Any:
        """The result on the device."""
        with self._device.current():
            target = self._values_on_device.empty() if given is None else given
            for name, tensor in target.items():
                tensor.copy_(self._got.tensors[name], non_blocking=True)
            self._up.record(self._device.stream())
        self._copied = True
        return self._given.give(target) if given is None else out


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
    """Pinned memory for the fields of a value, as tensors and as NumPy arrays."""

    def __init__(self, device: Device, shapes: TensorShapes) -> None:
        import torch

        self.tensors: Tensors = {}
        for name, (shape, dtype) in shapes.items():
            count = torch.Size(shape).numel()
            memory = device.pinned(max(count * dtype.itemsize, ALIGNMENT_BYTES))
            self.tensors[name] = memory[: count * dtype.itemsize].view(dtype).view(shape)
        self.arrays = {name: as_array(tensor) for name, tensor in self.tensors.items()}

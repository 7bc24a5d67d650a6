"""Methods on values in device memory: prepared calls, and the device library's own collective."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from topocomm.bench.methods import Arrays
from topocomm.bench.problem import ROOT, Fields, Problem
from topocomm.errors import DeadlineError, OperatorError
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.communicator import Communicator
from topocomm.execute.device import device_library as devices
from topocomm.execute.device.device_call import DeviceCall
from topocomm.execute.device.device_library import Device
from topocomm.execute.device.device_values import Tensors
from topocomm.operators.tensors import as_array, torch_dtype
from topocomm.planning.collectives import FROM_ROOT
from topocomm.planning.native import CALLS, OPERATORS

STAGED = "staged"
WORDS = {STAGED: "GPU memory, staged through host memory", "kernel": "GPU memory, by one kernel"}


def common_device(comm: Communicator) -> Device | None:
    """Return this rank's device if all ranks are on GPUs that torch sees; else None on all ranks; collective."""
    if any(comm.topology.by_id[place].kind != "gpu" for place in comm.places):
        return None
    device = devices.device_here(comm.gpu)
    has_device = comm.allgather_bytes(np.array([device is not None], np.uint8))
    return device if all(flag[0] for flag in has_device) else None


class DeviceMethod:
    """Base of methods on a device: out of place, timed to the end of the stream."""

    in_place = False
    name = ""

    def __init__(self, comm: Communicator, problem: Problem, device: Device) -> None:
        self._comm, self._problem, self._device = comm, problem, device
        self._result: Any = None

    def finish(self) -> None:
        """Wait until the device has finished the work on the stream.

        Raises:
            DeadlineError, RankFailedError: As for any call.
        """
        with self._device.current():
            end = self._device.event()
            end.record(self._device.stream())
        self._comm.synchronize()
        until_s = time.monotonic() + self._comm.session.settings.timeout_s
        while not end.query():
            if time.monotonic() > until_s:
                raise DeadlineError(f"rank {self._comm.rank}: {self._device.place} is not through with its stream")

    def result(self) -> Fields | None:
        if self._result is None:
            return None
        self.finish()
        return {name: as_array(tensor.cpu()) for name, tensor in self._problem.fields_of(self._result).items()}

    def _tensors(self, arrays: Arrays) -> Tensors:
        import torch

        tensors = {}
        for name, array in arrays.items():
            raw = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())
            memory = self._device.memory(raw.numel())
            memory.copy_(raw)
            tensors[name] = memory.view(torch_dtype(array.dtype)).view(array.shape)
        return tensors


class OnDevices(DeviceMethod):
    """A prepared call on tensors of a device.

    With `graph` the call is captured in a graph and replayed. With `planned` the schedule is executed although the
    planner chose the library's own collective; `prepare` returns False if it did not.

    Attributes:
        name: Row name with the device path; set by `prepare`.
    """

    def __init__(
        self, comm: Communicator, problem: Problem, device: Device, *, graph: bool = False, planned: bool = False
    ) -> None:
        self.name = "topocomm on GPUs"
        self.way = ""
        self.call: PreparedCall | None = None
        super().__init__(comm, problem, device)
        self._graph, self._planned = graph, planned
        self._put: Callable[[], object] = self._call
        self._value: Any = None
        self._target: Any = None

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """False if torch lacks the dtypes, or the call cannot be captured."""
        problem, comm = self._problem, self._comm
        try:
            self._value, self._target = (problem.given(self._tensors(arrays)) for arrays in (x, out))
            words = {"like": self._value, "operator": problem.reduction, "root": ROOT}
            plan = comm.explain(problem.collective, **words) if self._planned else None
            if plan is not None and not plan.native_call:
                return False
            self.call = comm.prepare(problem.collective, **words, plan=plan)
        except OperatorError:  # on all ranks: dtypes that torch lacks
            return False
        moved = self.call.moved_by if isinstance(self.call, DeviceCall) else STAGED
        self.way = WORDS.get(moved, f"GPU memory, by {moved}")
        self.name = f"topocomm on GPUs, {moved}"
        if problem.collective in FROM_ROOT and comm.rank != ROOT:
            self._value = None
        if self._graph:
            if not isinstance(self.call, DeviceCall) or not self.call.in_graphs:
                return False
            self.name += ", graph"
            self.run()  # compiles kernels, makes connections
            self.finish()
            with self._device.current():
                self._put = self._device.graph(self._call)
        return True

    def run(self) -> None:
        """Enqueue the call on the stream."""
        self._put()

    def _call(self) -> None:
        assert self.call is not None
        self._result = self.call(self._value, out=self._target)

    def free(self) -> None:
        if self.call is not None:
            self.call.free()
        self._put = self._call  # a graph that is kept would hold up the end of NCCL
        self._result = None


class NativeCollective(DeviceMethod):
    """The device library's own collective on the communicator of our transport."""

    name = "native"

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """False if the library lacks the collective, the operator or the dtype."""
        problem, path = self._problem, self._comm.session.device_path
        if path is None or path.transport is None or len(x) != 1 or problem.collective not in CALLS:
            return False
        (dtype,) = (array.dtype.name for array in x.values())
        run = path.transport.native(problem.collective, dtype, problem.operator.name)
        if run is None or problem.reduction not in (None, *OPERATORS):
            return False
        self.name = CALLS[problem.collective]
        self._run = run
        self._value, self._target = self._tensors(x), self._tensors(out)
        self._result = self._target
        (self._sent,), (self._got,) = self._value.values(), self._target.values()
        return True

    def run(self) -> None:
        with self._device.current():
            self._run(self._sent, self._got, self._device.stream())

    def free(self) -> None:
        self.finish()
        self._result = None

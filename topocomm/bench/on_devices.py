"""Our row on values in device memory, by whatever moves them there; beside the rows in host memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from topocomm.bench.method import Arrays
from topocomm.bench.problem import ROOT, Fields, Problem
from topocomm.errors import DeadlineError, OperatorError
from topocomm.execute import device as devices
from topocomm.execute.communicator import Communicator
from topocomm.execute.device import Device
from topocomm.execute.device_staging import StagedCall
from topocomm.execute.device_values import Tensors
from topocomm.execute.executor import PreparedCall
from topocomm.operators.tensors import as_array, torch_dtype
from topocomm.planning.collectives import CARRYING

STAGED = "staged"
WORDS = {STAGED: "GPU memory, staged through host memory"}


def common_device(comm: Communicator) -> Device | None:
    """The device of this rank, where all ranks are on GPUs that torch sees; else None on all ranks; collective."""
    if any(comm.topology.by_id[place].kind != "gpu" for place in comm.places):
        return None
    mine = devices.device_here(comm.gpu)
    told = comm.allgather_bytes(np.array([mine is not None], np.uint8))
    return mine if all(one[0] for one in told) else None


class OnDevices:
    """A prepared call on tensors of a device; out of place.

    Args:
        comm: The communicator.
        problem: What to do.
        device: Where.
        graph: Whether the call is recorded once and then replayed.

    Attributes:
        name: The row's, with what moves the messages; known when it is prepared.
    """

    in_place = False

    def __init__(self, comm: Communicator, problem: Problem, device: Device, *, graph: bool = False) -> None:
        self.name = "topocomm on GPUs"
        self.way = ""
        self.call: PreparedCall | None = None
        self._comm, self._problem, self._device, self._graph = comm, problem, device, graph
        self._put: Callable[[], object] = self._call
        self._value: Any = None
        self._target: Any = None
        self._made: Any = None

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """As `Method.prepare`; False where no tensors hold such values, or no graph the call."""
        problem, comm = self._problem, self._comm
        operator = None if problem.collective in CARRYING else problem.operator
        try:
            self._value, self._target = (problem.given(self._tensors(arrays)) for arrays in (x, out))
            self.call = comm.prepare(problem.collective, like=self._value, operator=operator, root=ROOT)
        except OperatorError:  # on all ranks: dtypes that torch lacks
            return False
        assert comm.way is not None
        moved = STAGED if comm.way.wire is None or isinstance(self.call, StagedCall) else comm.way.wire.name
        self.way = WORDS.get(moved, f"GPU memory, by {moved}")
        self.name = f"topocomm on GPUs, {moved}"
        if problem.collective == "broadcast" and comm.rank != ROOT:
            self._value = None
        if self._graph:
            if isinstance(self.call, StagedCall) or comm.way.wire is None or not comm.way.wire.in_graphs:
                return False
            self.name += ", graph"
            self.run()  # compiles kernels, makes connections
            self.finish()
            with self._device.current():
                self._put = self._device.graph(self._call)
        return True

    def run(self) -> None:
        """As `Method.run`: puts the call on the stream."""
        self._put()

    def _call(self) -> None:
        assert self.call is not None
        self._made = self.call(self._value, out=self._target)

    def finish(self) -> None:
        """Wait until the device is through with what was put on the stream.

        Raises:
            DeadlineError, RankFailedError: As for any call.
        """
        with self._device.current():
            end = self._device.event()
            end.record(self._device.stream())
        self._comm.synchronize()
        until_s = time.monotonic() + self._comm.settings.timeout_s
        while not end.query():
            if time.monotonic() > until_s:
                raise DeadlineError(f"rank {self._comm.rank}: {self._device.place} is not through with its stream")

    def result(self) -> Fields | None:
        """As `Method.result`."""
        made = self._made
        if made is None:
            return None
        self.finish()
        fields = made if isinstance(made, Mapping) else {self._problem.layout.fields[0].name: made}
        return {name: as_array(tensor.cpu()) for name, tensor in fields.items()}

    def free(self) -> None:
        """As `Method.free`."""
        if self.call is not None:
            self.call.free()
        self._made = None

    def _tensors(self, arrays: Arrays) -> Tensors:
        """Tensors of the device that hold the same."""
        import torch

        made = {}
        for name, array in arrays.items():
            raw = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())
            memory = self._device.memory(raw.numel())
            memory.copy_(raw)
            made[name] = memory.view(torch_dtype(array.dtype)).view(array.shape)
        return made

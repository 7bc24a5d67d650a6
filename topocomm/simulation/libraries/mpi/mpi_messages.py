"""What one message of MPI takes: in a host or between hosts, from host or device memory, by size."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from topocomm.planning.libraries.job_shape import JobShape
from topocomm.planning.libraries.library_figures import Figures

RENDEZVOUS_BYTES, DEVICE_LONG_BYTES = 128 << 10, 256 << 10
"""Sizes from which a message takes all ports of its host (UCX's rendezvous), and from which the network card reads a
device's memory instead of the CPU."""
MEMORY_LONG_BYTES = 8 << 10
"""Size from which messages between cores of a host take a handshake."""
DEVICE_COPY_BYTES = 16 << 10
"""Size from which a message between devices of a host is a copy by the device."""


@dataclass(frozen=True)
class Messages:
    """Costs of messages of a job, by figures.

    Attributes:
        shape: The ranks.
        figures: All figures.
        on_device: Whether payloads lie in device memory.
    """

    shape: JobShape
    figures: Figures
    on_device: bool = False

    def near_us(self, nbytes: float, *, both_ways: bool = False) -> float:
        """Time of a message between ranks of a host; a core that sends and receives copies twice as much."""
        figures = self.figures
        if self.on_device:
            if nbytes < DEVICE_COPY_BYTES:
                return figures["mpi.device_us"] + nbytes / figures["mpi.device_memory_gb_per_s"] / 1e3
            return figures["mpi.device_inside_us"] + nbytes / figures["mpi.device_gb_per_s"] / 1e3
        copied = 2 * nbytes if both_ways else nbytes
        latency_us = figures["mpi.memory_us"] + (figures["mpi.memory_long_us"] if nbytes >= MEMORY_LONG_BYTES else 0.0)
        return latency_us + copied / figures["mpi.memory_gb_per_s"] / 1e3

    def far_us(self, nbytes: float, at_once: float = 1) -> float:
        """Time of a message between hosts while `at_once` leave each host."""
        figures = self.figures
        port = (self.shape.network_gb_per_s or inf) * figures["mpi.efficiency"] / at_once
        if self.on_device:
            if nbytes < DEVICE_LONG_BYTES:
                return figures["mpi.device_us"] + nbytes / min(port, figures["mpi.device_small_gb_per_s"]) / 1e3
            return figures["mpi.device_long_us"] + nbytes / min(port, figures["mpi.device_gb_per_s"]) / 1e3
        if nbytes <= RENDEZVOUS_BYTES:
            return figures["mpi.network_us"] + nbytes / min(port, figures["mpi.eager_gb_per_s"]) / 1e3
        return figures["mpi.network_us"] + figures["mpi.rendezvous_us"] + nbytes / port / 1e3

    def hop_us(self, nbytes: float, distance: int) -> float:
        """Time of a round in which all ranks exchange with the rank at a distance."""
        is_near = distance < self.shape.per_host
        us = self.near_us(nbytes, both_ways=True) if is_near else self.far_us(nbytes, self.shape.per_host)
        return self.figures["mpi.call_us"] + us

    def step_us(self, nbytes: float) -> float:
        """Time of a round in which all ranks send to the next one and receive from the one before, one of many.

        A part passes hops of all kinds in turn, so their mean counts, but no less than the bytes on the slowest.
        """
        slowest = 0.0
        if self.shape.per_host > 1:
            slowest = self.near_us(nbytes, both_ways=True) - self.near_us(0)
        if self.shape.hosts > 1:
            slowest = max(slowest, self._segment_us(nbytes) - self.far_us(0))
        return max(slowest, self.mean_us(nbytes, both_ways=True))

    def mean_us(self, nbytes: float, *, both_ways: bool = False) -> float:
        """Time of a hop to the next rank, mean over a chain of all ranks."""
        n, hosts = self.shape.hosts * self.shape.per_host, self.shape.hosts
        far = (hosts - 1) * self._segment_us(nbytes) if hosts > 1 else 0.0
        near = (n - hosts) * self.near_us(nbytes, both_ways=both_ways) if n > hosts else 0.0
        return (far + near) / (n - 1)

    def _segment_us(self, nbytes: float) -> float:
        """Time of a message between hosts that is one of many in a row."""
        figures = self.figures
        if self.on_device and nbytes >= DEVICE_COPY_BYTES:
            return figures["mpi.device_segment_us"] + nbytes / figures["mpi.device_gb_per_s"] / 1e3
        return self.far_us(nbytes)

    def handled_us(self, nbytes: float) -> float:
        """Time that a rank spends on one of many messages in a row; a CPU that reads device memory waits for each."""
        if self.on_device:
            return self.near_us(nbytes) if self.shape.hosts == 1 else self.far_us(nbytes)
        if self.shape.per_host > 1:
            return self.near_us(nbytes) - self.near_us(0)
        return self.far_us(nbytes) - self.far_us(0)

    def fold_us(self, nbytes: float) -> float:
        """Time to add a received part to the own one."""
        return nbytes / self.figures["mpi.fold_gb_per_s"] / 1e3

"""MPI's algorithms as work for the simulator; `mpi_times` is their closed form.

A message costs its ranks time before its bytes and a latency after, and its rate is that of a core or a port
(`mpi_messages`). Payloads lie in host memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.cost.simulated_work import NO_TASK, Work, WorkBuilder
from topocomm.planning.libraries.job_shape import JobShape, job_shape
from topocomm.planning.libraries.library_figures import topology_figures
from topocomm.planning.routing.routes import Ints
from topocomm.simulation.libraries.library_algorithm import LibraryAlgorithm
from topocomm.simulation.libraries.mpi.mpi_messages import RENDEZVOUS_BYTES, Messages
from topocomm.simulation.libraries.mpi.mpi_rules import MpiChoice, choose_mpi
from topocomm.topology.model import Topology

HAN_SEGMENT_BYTES = 64 << 10
MOST_SEGMENTS = 64
"""Segments of a pipeline that are simulated; more are joined, as their steady state is the same."""


@dataclass(frozen=True)
class _Sender:
    """Adds messages with MPI's costs."""

    builder: WorkBuilder
    messages: Messages
    label: str

    def send(
        self,
        src: Ints,
        dst: Ints,
        nbytes: float,
        *,
        after: Ints | None,
        folds: bool = False,
        round_: int = 0,
        both_ways: bool = True,
        call_us: float | None = None,
    ) -> Ints:
        """Add messages of one size; `folds` adds the time to sum them up, `both_ways` doubles a core's copies."""
        figures, per_host = self.messages.figures, self.messages.shape.per_host
        far = src // per_host != dst // per_host
        copies = 2.0 if both_ways else 1.0
        far_rate = self.messages.shape.network_gb_per_s
        if nbytes <= RENDEZVOUS_BYTES:
            far_rate = min(far_rate, figures["mpi.eager_gb_per_s"])
        near_us, far_us = self.messages.near_us(0), self.messages.far_us(0)
        if nbytes > RENDEZVOUS_BYTES:
            far_us += figures["mpi.rendezvous_us"]
        near_us = self.messages.near_us(nbytes) - nbytes / figures["mpi.memory_gb_per_s"] / 1e3
        fold_us = self.messages.fold_us(nbytes) if folds else 0.0
        return self.builder.send(
            src,
            dst,
            np.ceil(np.where(far, nbytes / figures["mpi.efficiency"], nbytes)),
            after=after,
            before_us=figures["mpi.call_us"] if call_us is None else call_us,
            latency_us=np.where(far, far_us, near_us) + fold_us,
            most_gb_per_s=np.where(far, max(far_rate, 1e-9), figures["mpi.memory_gb_per_s"] / copies),
            round_=round_,
            label=self.label,
        )


def work_by(topology: Topology, shape: JobShape, collective: str, payload_bytes: int, choice: MpiChoice) -> Work:
    """Return the work of an algorithm of MPI.

    Raises:
        PlanError: The algorithm is none of those that are simulated, or the ranks do not suit it.
    """
    builders = {
        ("allreduce", "recursive-doubling"): _doubling,
        ("allreduce", "rabenseifner"): _rabenseifner,
        ("allreduce", "ring"): _ring,
        ("allreduce", "han"): _han,
        ("allgather", "ring"): _ring,
        ("broadcast", "binomial"): _binomial,
        ("broadcast", "chain"): _chain,
    }
    if (collective, choice.algorithm) not in builders:
        known = ", ".join(sorted(name for kind, name in builders if kind == collective))
        raise PlanError(f"{collective} by MPI's {choice.algorithm}: expected one of {known}")
    figures = topology_figures(topology)
    sender = _Sender(WorkBuilder(shape.ranks), Messages(shape, figures), f"{collective} {choice.algorithm}")
    builders[collective, choice.algorithm](sender, len(shape.ranks), payload_bytes, choice)
    return sender.builder.build()


def _powers(n: int, name: str) -> int:
    """log2 of the ranks, for algorithms that are simulated for powers of two."""
    if n & (n - 1):
        raise PlanError(f"MPI's {name}: expected a power of two of ranks, got {n}; mpi-ring takes any number")
    return n.bit_length() - 1


def _doubling(sender: _Sender, n: int, payload_bytes: int, _choice: MpiChoice) -> None:
    levels = n.bit_length() - 1
    _exchanges(sender, n, payload_bytes, [(1 << level, float(payload_bytes), True) for level in range(levels)])


def _rabenseifner(sender: _Sender, n: int, payload_bytes: int, _choice: MpiChoice) -> None:
    """Halving with doubling distances inside out, then the way back (Thakur et al., IJHPCA 19 (2005) 49-66)."""
    levels = n.bit_length() - 1
    steps = [(1 << (levels - 1 - level), payload_bytes / 2 ** (level + 1), True) for level in range(levels)]
    _exchanges(sender, n, payload_bytes, steps + [(distance, part, False) for distance, part, _ in reversed(steps)])


def _exchanges(sender: _Sender, n: int, payload_bytes: int, steps: list[tuple[int, float, bool]]) -> None:
    """Add rounds of exchanges at (distance, bytes, whether they are summed) among a power of two of ranks.

    Of other numbers of ranks the first ones give their value to a neighbour before, and get the result after.
    """
    rest = n - (1 << (n.bit_length() - 1))
    core = np.concatenate([np.arange(1, 2 * rest, 2), np.arange(2 * rest, n)])
    rank, sent, before = np.arange(len(core)), None, 0
    given = np.full(len(core), NO_TASK)
    if rest:
        given[:rest] = sender.send(core[:rest] - 1, core[:rest], payload_bytes, after=None, folds=True, both_ways=False)
    for round_, (distance, part, folds) in enumerate(steps):
        after = given if sent is None else np.stack([sent[rank ^ before], sent], axis=1)
        sent = sender.send(core, core[rank ^ distance], part, after=after, folds=folds, round_=round_)
        before = distance
    if rest and sent is not None:
        got = np.stack([sent[rank ^ before][:rest], sent[:rest]], axis=1)
        sender.send(core[:rest], core[:rest] - 1, payload_bytes, after=got, both_ways=False, round_=len(steps))


def _ring(sender: _Sender, n: int, payload_bytes: int, _choice: MpiChoice) -> None:
    rank, sent = np.arange(n), None
    sums = sender.label.startswith("allreduce")
    for round_ in range((2 if sums else 1) * (n - 1)):
        after = None if sent is None else np.roll(sent, 1)
        folds = sums and round_ < n - 1
        sent = sender.send(rank, (rank + 1) % n, payload_bytes / n, after=after, folds=folds, round_=round_)


def _binomial(sender: _Sender, n: int, payload_bytes: int, _choice: MpiChoice) -> None:
    arrived = np.full(n, -1)
    call_us = sender.messages.figures["mpi.call_us"]
    for level in range((n - 1).bit_length()):
        src = np.arange(min(1 << level, n - (1 << level)))
        dst = src + (1 << level)
        # A rank posts its messages one after the other.
        waits = [call_us / 2 * (level - int(rank).bit_length() + 2) for rank in src]
        parts = [
            sender.send(
                src[i : i + 1],
                dst[i : i + 1],
                payload_bytes,
                after=arrived[src[i : i + 1]],
                both_ways=False,
                round_=level,
                call_us=waits[i],
            )
            for i in range(len(src))
        ]
        arrived[dst] = np.concatenate(parts)


def _chain(sender: _Sender, n: int, payload_bytes: int, choice: MpiChoice) -> None:
    segment = choice.segment_bytes or payload_bytes
    segments = min(max(ceil(payload_bytes / segment), 1), MOST_SEGMENTS)
    part, step_us = payload_bytes / segments, sender.messages.figures["mpi.segment_us"]
    joined = ceil(payload_bytes / segment) / segments
    before: list[Ints | None] = [None] * n
    for round_ in range(segments):
        arrived: Ints | None = None
        for rank in range(n - 1):
            own = before[rank]
            waits = [task for task in (arrived, own) if task is not None]
            after = np.stack(waits, axis=1) if waits else None
            ends = np.array([rank]), np.array([rank + 1])
            arrived = sender.send(*ends, part, after=after, round_=round_, call_us=step_us * joined)
            before[rank] = arrived


def _han(sender: _Sender, n: int, payload_bytes: int, _choice: MpiChoice) -> None:
    """HAN: binomial reduction in hosts, recursive doubling of leaders, binomial broadcast, for each segment."""
    shape = sender.messages.shape
    hosts, size = shape.hosts, shape.per_host
    across, inside = _powers(hosts, "HAN over hosts"), _powers(size, "HAN in a host")
    segments = min(max(ceil(payload_bytes / HAN_SEGMENT_BYTES), 1), MOST_SEGMENTS)
    part = payload_bytes / segments
    leader = np.arange(hosts) * size
    last_of: dict[str, Ints] = {}

    def waits(stage: str, *tasks: Ints | None) -> Ints | None:
        """What a step comes after: these tasks and the same step of the segment before."""
        known = [task for task in (*tasks, last_of.get(stage)) if task is not None]
        return np.stack(known, axis=1) if known else None

    for _ in range(segments):
        sent: Ints | None = None
        for level in range(inside):
            into = np.arange(0, n, 2 << level)
            prior = None if sent is None else np.stack([sent[0::2], sent[1::2]], axis=1)
            stage = f"up{level}"
            known = [] if prior is None else [prior]
            known += [last_of[stage][:, None]] if stage in last_of else []
            after = np.concatenate(known, axis=1) if known else None
            sent = sender.send(into + (1 << level), into, part, after=after, folds=True, both_ways=False)
            last_of[stage] = sent
        for level in range(across):
            order = np.arange(hosts) ^ (1 << level - 1) if level else np.arange(hosts)
            after = waits(f"across{level}", *(() if sent is None else (sent[order], sent)))
            other = leader[np.arange(hosts) ^ (1 << level)]
            sent = sender.send(leader, other, part, after=after, folds=True)
            last_of[f"across{level}"] = sent
        if sent is not None and across:
            sent = sent[np.arange(hosts) ^ (1 << across - 1)]
        for level in reversed(range(inside)):
            src = np.arange(0, n, 2 << level)
            prior = None if sent is None else np.repeat(sent, len(src) // len(sent))
            after = waits(f"down{level}", prior)
            got = sender.send(src, src + (1 << level), part, after=after, both_ways=False)
            last_of[f"down{level}"] = got
            sent = got if prior is None else np.stack([prior, got], axis=1).ravel()


def _algorithm(name: str, algorithm: str | None, summary: str, *collectives: str) -> LibraryAlgorithm:
    def build(topology: Topology, collective: str, payload_bytes: int, ranks: tuple[str, ...]) -> Work:
        shape = job_shape(topology, ranks)
        if algorithm is None:
            version = (5, 0) if name == "openmpi-5" else (4, 0)
            choice = choose_mpi(name.removesuffix("-5"), collective, len(ranks), payload_bytes, version=version)
        else:
            choice = MpiChoice(algorithm, 128 << 10 if algorithm == "chain" else 0)
        return work_by(topology, shape, collective, payload_bytes, choice)

    return LibraryAlgorithm(name, summary, collectives, build)


ALGORITHMS = (
    _algorithm("openmpi", None, "what the tuned rules of Open MPI 4.0 take", "allreduce"),
    _algorithm("openmpi-5", None, "what the tuned rules of Open MPI 4.1 and later take", "allreduce"),
    _algorithm("mpich", None, "what MPICH's rules take", "allreduce"),
    _algorithm("mpi-recursive-doubling", "recursive-doubling", "exchanges at distances 1, 2, 4, ...", "allreduce"),
    _algorithm("mpi-rabenseifner", "rabenseifner", "halving, then doubling", "allreduce"),
    _algorithm("mpi-ring", "ring", "a ring in rank order", "allreduce", "allgather"),
    _algorithm("mpi-han", "han", "Open MPI's HAN: hosts, then leaders, in segments", "allreduce"),
    _algorithm("mpi-binomial", "binomial", "a binomial tree", "broadcast"),
    _algorithm("mpi-chain", "chain", "a chain of ranks, in segments of 128 KiB", "broadcast"),
)

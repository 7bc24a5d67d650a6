"""What MPI's collectives take, in closed form; `mpi_work` simulates the same.

Times are the mean over ranks, as OSU's benchmarks print them: ranks of a broadcast leave it at different times.
"""

from __future__ import annotations

from math import ceil, log2

from topocomm.errors import PlanError
from topocomm.planning.libraries.job_shape import JobShape
from topocomm.planning.libraries.library_figures import Figures
from topocomm.simulation.libraries.mpi.mpi_messages import Messages
from topocomm.simulation.libraries.mpi.mpi_rules import MpiChoice, choose_mpi


def mpi_us(
    shape: JobShape,
    figures: Figures,
    collective: str,
    payload_bytes: int,
    *,
    library: str = "openmpi",
    on_device: bool = False,
    pairs: int = 1,
    version: tuple[int, ...] = (4, 0),
) -> float:
    """Return the predicted time in us of a call of MPI.

    Args:
        shape: The ranks.
        figures: All figures.
        collective: Our name, or `message`, the one-way time between pairs of ranks.
        payload_bytes: As plans count it.
        library: "openmpi" or "mpich".
        on_device: Whether the payload lies in device memory. Sums then go through host memory.
        pairs: Of `message`: pairs at once.
        version: Of Open MPI.

    Raises:
        PlanError: The rules of this collective are not known.
    """
    if collective in ("message", "stream"):
        messages = Messages(shape, figures, on_device)
        at_once = pairs if on_device or collective == "stream" else max(1.0, pairs / 2)  # there, then back
        return messages.far_us(payload_bytes, at_once) if shape.hosts > 1 else messages.near_us(payload_bytes)
    n = shape.hosts * shape.per_host
    choice = choose_mpi(library, collective, n, payload_bytes, version=version)
    if collective == "allreduce":
        us = allreduce_us(Messages(shape, figures), payload_bytes, choice)
        copies = figures["mpi.copy_us"] + payload_bytes / figures["mpi.copy_gb_per_s"] / 1e3
        return us + 2 * copies if on_device else us
    messages = Messages(shape, figures, on_device)
    if collective == "allgather":
        return allgather_us(messages, payload_bytes, choice)
    return broadcast_us(messages, payload_bytes, choice)


def allreduce_us(messages: Messages, payload_bytes: int, choice: MpiChoice) -> float:
    """Return the time of an allreduce of host memory by an algorithm."""
    n = messages.shape.hosts * messages.shape.per_host
    levels = ceil(log2(n))
    if choice.algorithm == "recursive-doubling":
        rounds = sum(messages.hop_us(payload_bytes, 1 << level) for level in range(levels))
        return rounds + levels * messages.fold_us(payload_bytes)
    if choice.algorithm == "rabenseifner":
        parts = [payload_bytes / 2 ** (level + 1) for level in range(levels)]
        halving = sum(messages.hop_us(part, n >> (level + 1)) for level, part in enumerate(parts))
        return 2 * halving + sum(messages.fold_us(part) for part in parts)
    if choice.algorithm == "ring":
        part = payload_bytes / n
        step = messages.figures["mpi.call_us"] + messages.step_us(part)
        return (n - 1) * (2 * step + messages.fold_us(part))
    if choice.algorithm == "reduce-broadcast":  # a binomial tree there and back
        rounds = sum(messages.hop_us(payload_bytes, 1 << level) for level in range(levels))
        return 2 * rounds + levels * messages.fold_us(payload_bytes)
    if choice.algorithm == "han":
        return han_us(messages, payload_bytes)
    raise PlanError(
        f"allreduce by {choice.algorithm!r}: expected recursive-doubling, rabenseifner, ring, reduce-broadcast or han"
    )


def han_us(messages: Messages, payload_bytes: int) -> float:
    """Return the time of HAN's allreduce: reduce in a host, allreduce of leaders, broadcast in the host, pipelined.

    Segments of 64 KiB (HAN's default) overlap all steps, so the slowest of them counts for all but the first.
    """
    shape, call_us = messages.shape, messages.figures["mpi.call_us"]
    segments = max(1, ceil(payload_bytes / (64 << 10)))
    part = payload_bytes / segments
    down = [call_us + messages.near_us(part)] * ceil(log2(shape.per_host))
    up = [step + messages.fold_us(part) for step in down]
    exchange = call_us + messages.far_us(part) + messages.fold_us(part)
    steps = [*up, *([exchange] * ceil(log2(shape.hosts))), *down]
    return sum(steps) + (segments - 1) * max(steps)


def allgather_us(messages: Messages, payload_bytes: int, choice: MpiChoice) -> float:
    """Return the time of an allgather; the payload is the whole result."""
    n = messages.shape.hosts * messages.shape.per_host
    if choice.algorithm == "recursive-doubling":
        levels = ceil(log2(n))
        return sum(messages.hop_us(payload_bytes / n * (1 << level), 1 << level) for level in range(levels))
    part = payload_bytes / n
    return (n - 1) * (messages.figures["mpi.call_us"] + messages.step_us(part))


def broadcast_us(messages: Messages, payload_bytes: int, choice: MpiChoice) -> float:
    """Return the mean time over ranks of a broadcast by an algorithm."""
    n = messages.shape.hosts * messages.shape.per_host
    if choice.algorithm == "binomial":
        return _binomial_us(messages, payload_bytes, n)
    if choice.algorithm == "chain":
        return _chain_us(messages, payload_bytes, choice.segment_bytes, n)
    if choice.algorithm == "split-binary":
        return _split_binary_us(messages, payload_bytes, choice.segment_bytes, n)
    if choice.algorithm in ("scatter-doubling", "scatter-ring"):
        levels = ceil(log2(n))
        scatter = sum(messages.hop_us(payload_bytes / 2 ** (level + 1), n >> (level + 1)) for level in range(levels))
        kind = "recursive-doubling" if choice.algorithm == "scatter-doubling" else "ring"
        return scatter + allgather_us(messages, payload_bytes, MpiChoice(kind))
    raise PlanError(f"broadcast by {choice.algorithm!r}: expected binomial, chain, split-binary or scatter-*")


def _binomial_us(messages: Messages, payload_bytes: int, n: int) -> float:
    """Mean over ranks of the time when each has received and sent all: children at distances 1, 2, 4, ..."""
    per_host, call_us = messages.shape.per_host, messages.figures["mpi.call_us"]
    near = messages.near_us(payload_bytes) if per_host > 1 else 0.0
    far = messages.far_us(payload_bytes) if messages.shape.hosts > 1 else 0.0
    done = [0.0] * n
    for rank in range(n):
        distance = 1 << rank.bit_length()
        while rank + distance < n:
            done[rank] += call_us / 2
            child = rank + distance
            is_near = rank // per_host == child // per_host
            done[child] = done[rank] + call_us / 2 + (near if is_near else far)
            distance <<= 1
    return sum(done) / n


def _chain_us(messages: Messages, payload_bytes: int, segment_bytes: int, n: int) -> float:
    """Segments one after the other along a chain of all ranks; the middle one has waited half the chain."""
    segments = ceil(payload_bytes / segment_bytes)
    part = payload_bytes / segments
    step = messages.figures["mpi.segment_us"]
    return segments * (step + messages.step_us(part)) + (n - 2) / 2 * (step + messages.mean_us(part))


def _split_binary_us(messages: Messages, payload_bytes: int, segment_bytes: int, n: int) -> float:
    """Halves down the two sides of a binary tree in segments, then pairs across the sides exchange halves.

    The root, and each rank inside, sends every segment of a half to two ranks.
    """
    segments = max(1, ceil(payload_bytes / 2 / segment_bytes))
    part = payload_bytes / 2 / segments
    step = messages.figures["mpi.segment_us"]
    depth = max(1, ceil(log2(n + 1)) - 1)
    hop = messages.mean_us(part)
    exchange = messages.hop_us(payload_bytes / 2, n // 2)
    if messages.on_device and messages.shape.hosts == 1:
        exchange = messages.near_us(payload_bytes / 2)
    handled = 2 if n <= 4 else 3  # the root sends to two; a rank inside a larger tree also receives
    return segments * handled * (step + messages.handled_us(part)) + depth * (step + hop) + exchange

"""GPU memory that all ranks of a host map: conditions, ways, and all questions to the hardware.

Ways to map, the best first: ranks that are threads know each other's addresses; torch's symmetric memory, of a process
group; CuPy's handles, which travel as notes.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from topocomm.errors import TopocommError, install_command
from topocomm.execute.calls.agreement import gather_texts
from topocomm.execute.device.device_library import Device, visible_devices
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.device.nccl import call_on_all
from topocomm.execute.transports.device.torch_device import device_backend
from topocomm.execute.transports.watch import process_space

WHAT = "the set-up of memory inside the host"
THREADS, TORCH, CUPY = "threads", "torch's symmetric memory", "CuPy's handles"


class PeerFacts(NamedTuple):
    """Facts that ranks exchange.

    Attributes:
        host: Unique id of its machine.
        gpu: Unique id of its GPU.
        number: Of the GPU in its process.
        address: PCI address of the GPU, for messages.
        multiprocessors: How many it has.
        ways: How it can map memory of other processes.
        cut_off: GPUs that it sees and whose memory its own cannot map.
        why: Why it can do nothing of that.
    """

    host: str
    process: int
    gpu: str
    number: int
    address: str
    multiprocessors: int
    ways: Sequence[str]
    cut_off: Sequence[str]
    why: str = ""


class Mapping(ABC):
    """One rank's memory and its mappings of the others'."""

    def __init__(self, device: Device, rank: int, size_bytes: int, group: Any) -> None:
        self.device, self.rank, self.size_bytes, self.group = device, rank, size_bytes, group

    @abstractmethod
    def offer(self) -> str:
        """Allocate this rank's memory, zeroed; return what others need to map it."""

    @abstractmethod
    def open(self, offers: Sequence[str], facts: Sequence[PeerFacts]) -> Sequence[int]:
        """Map the others' memories; return the address of every rank's."""

    def leave(self) -> None:  # noqa: B027 - some need nothing
        """Unmap others' memories, after the last kernel of this rank."""

    @abstractmethod
    def free(self) -> None:
        """Free this rank's memory, after all ranks have unmapped it."""


def peer_facts(device: Device, group: Any) -> PeerFacts:
    """Return this rank's facts for the others."""
    address = device.bus_id or f"number {device.index}"
    host = "/".join(process_space())
    gpu = device.uuid or f"{host}/{address}"
    why, multiprocessors, cut_off = "", 0, []
    try:
        import torch

        import topocomm.operators.kernels.gpu_peer  # noqa: F401

        multiprocessors = int(torch.cuda.get_device_properties(device.index).multi_processor_count)
        cut_off = [
            other.uuid or f"{host}/{other.bus_id}"
            for other in visible_devices()
            if other is not device and not torch.cuda.can_device_access_peer(device.index, other.index)
        ]
    except ImportError as error:
        why = f"{error.name or 'triton'} is not installed"
    except (RuntimeError, AssertionError) as error:
        why = f"torch does not tell of its GPU: {error}"
    ways = [name for name, there in ((TORCH, _has_symmetric(group)), (CUPY, _has_handles())) if there]
    return PeerFacts(host, os.getpid(), gpu, device.index, address, multiprocessors, ways, cut_off, why)


def peer_refusal(facts: Sequence[PeerFacts], most_ranks: int) -> str | None:
    """Return why these ranks cannot write to each other's memory; None if they may try."""
    for rank, fact in enumerate(facts):
        if fact.why:
            return f"rank {rank}: {fact.why}"
        if fact.host != facts[0].host:
            return f"ranks 0 and {rank} are not on one host"
    if len(facts) > most_ranks:
        return f"{len(facts)} ranks are more than {most_ranks}"
    for rank, fact in enumerate(facts):
        for other, peer in enumerate(facts):
            if peer.gpu in fact.cut_off:
                return (
                    f"the GPU of rank {rank} ({fact.address}) cannot map the memory of rank {other}'s "
                    f"({peer.address}): no P2P; nvidia-smi topo -p2p r shows which pairs can"
                )
    processes = Counter(fact.process for fact in facts)
    if len(processes) == 1:
        return None
    if len(processes) < len(facts):
        return "some ranks are threads of one process, and others are not"
    gpus = Counter(fact.gpu for fact in facts)
    shared = next((fact for fact in facts if gpus[fact.gpu] > 1), None)
    if shared is not None:
        return f"processes share the GPU {shared.address}, where they take turns; give each a GPU of its own"
    if way_of(facts) is None:
        return f"no way to map memory between processes is there on all ranks; {install_command('nccl-cu12')}"
    return None


def way_of(facts: Sequence[PeerFacts]) -> str | None:
    """Return the mapping that all ranks support; None without one."""
    if len({fact.process for fact in facts}) == 1:
        return THREADS
    return next((way for way in facts[0].ways if all(way in fact.ways for fact in facts)), None)


def programs_of(facts: Sequence[PeerFacts]) -> int:
    """Return how many programs of every rank run at once, each on its own multiprocessor.

    They take half of these: another kernel that waits for other ranks, NCCL's or one of a second communicator, may
    hold the others, and a rank on which the one has no room must not wait for a rank on which the other has none.
    """
    ranks = Counter(fact.gpu for fact in facts)
    return min(fact.multiprocessors // (2 * ranks[fact.gpu]) for fact in facts)


def map_memory(
    waiting: Waiting, device: Device, group: Any, facts: Sequence[PeerFacts], size_bytes: int
) -> tuple[Mapping, Sequence[int]] | str:
    """Map zeroed memory of every rank; return it with its addresses here, or on all ranks why not; collective.

    Raises:
        DeadlineError, RankFailedError: Not all ranks come, or one fails.
    """
    way = way_of(facts)
    assert way is not None, "asked for only where there is one"
    mapping = MAPPINGS[way](device, waiting.transport.rank, size_bytes, group)
    offers = _gather_results(waiting, mapping.offer)
    if isinstance(offers, str):
        return f"{way}: {offers}"

    def open_all() -> Sequence[int]:  # torch's waits for the others, one of whom may have come to an error
        opening = call_on_all(waiting, device, lambda: mapping.open(offers, facts), "peers", WHAT)
        if opening.error is not None:
            raise opening.error
        addresses: Sequence[int] = opening.made
        return addresses

    addresses = _gather_results(waiting, open_all)
    if isinstance(addresses, str):
        mapping.leave()  # its own stays: others may have it mapped still
        return f"{way}: {addresses}"
    return mapping, addresses[mapping.rank]


def _gather_results(waiting: Waiting, step: Callable[[], Any]) -> list[Any] | str:
    """Return the results of a step on every rank; if it fails on some, their errors."""
    result, why = None, ""
    try:
        result = step()
    except TopocommError:  # not this rank's own: nobody waits for it
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the others wait to hear of it
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    records = [json.loads(text) for text in gather_texts(waiting, json.dumps([result, why]).encode(), what=WHAT)]
    failed = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(records) if text]
    return "; ".join(failed[:4]) if failed else [result for result, _ in records]


class ThreadsMapping(Mapping):
    """Plain memory of one process that all its used GPUs can access."""

    def offer(self) -> str:
        import torch

        with self.device.current():
            self._memory = self.device.memory(self.size_bytes)
            self._memory.zero_()
            torch.cuda.synchronize(self.device.index)
        return str(self._memory.data_ptr())

    def open(self, offers: Sequence[str], facts: Sequence[PeerFacts]) -> Sequence[int]:
        for number in {fact.number for fact in facts} - {self.device.index}:
            _reach(self.device, number)
        return [int(offer) for offer in offers]

    def free(self) -> None:
        del self._memory


def _reach(device: Device, number: int) -> None:
    """Enable peer access between two GPUs of this process, which torch does before it copies."""
    import torch

    if torch.version.hip is not None:
        raise RuntimeError("plain memory of an AMD GPU does not show another what is written while a kernel runs")
    own = torch.zeros(1, device=device.place)
    other = torch.zeros(1, device=torch.device("cuda", number))
    own.copy_(other)
    other.copy_(own)
    torch.cuda.synchronize(device.index)


class TorchMapping(Mapping):
    """Symmetric memory of a process group with the same rank numbers."""

    def offer(self) -> str:
        import torch
        from torch.distributed import _symmetric_memory as symmetric

        self._memory: Any = symmetric.empty(self.size_bytes, dtype=torch.uint8, device=self.device.place)
        self._memory.zero_()
        torch.cuda.synchronize(self.device.index)
        return ""

    def open(self, offers: Sequence[str], facts: Sequence[PeerFacts]) -> Sequence[int]:
        from torch.distributed import _symmetric_memory as symmetric

        self._handle: Any = symmetric.rendezvous(self._memory, self.group)
        addresses = [int(address) for address in self._handle.buffer_ptrs]
        if len(addresses) != len(facts) or addresses[self.rank] != self._memory.data_ptr():
            raise RuntimeError("the addresses are not those of these ranks' memories")
        return addresses

    def free(self) -> None:
        del self._handle, self._memory


class CupyMapping(Mapping):
    """An allocation of its own, since a handle stands for a whole one; handles travel as hexadecimal digits."""

    def __init__(self, device: Device, rank: int, size_bytes: int, group: Any) -> None:
        super().__init__(device, rank, size_bytes, group)
        import cupy  # type: ignore[import-not-found, unused-ignore]

        self._runtime, self._device = cupy.cuda.runtime, cupy.cuda.Device(device.index)
        self._own = 0
        self._opened: dict[int, int] = {}

    def offer(self) -> str:
        with self._device:
            self._own = int(self._runtime.malloc(self.size_bytes))
            self._runtime.memset(self._own, 0, self.size_bytes)
            self._runtime.deviceSynchronize()
            return bytes(self._runtime.ipcGetMemHandle(self._own)).hex()

    def open(self, offers: Sequence[str], facts: Sequence[PeerFacts]) -> Sequence[int]:
        with self._device:
            for peer, offer in enumerate(offers):
                if peer != self.rank:
                    self._opened[peer] = int(self._runtime.ipcOpenMemHandle(bytes.fromhex(offer)))
        return [self._opened.get(peer, self._own) for peer in range(len(offers))]

    def leave(self) -> None:
        with self._device:
            while self._opened:
                self._runtime.ipcCloseMemHandle(self._opened.popitem()[1])

    def free(self) -> None:
        with self._device:
            self._runtime.free(self._own)


MAPPINGS: dict[str, type[Mapping]] = {THREADS: ThreadsMapping, TORCH: TorchMapping, CUPY: CupyMapping}


def _has_symmetric(group: Any) -> bool:
    if device_backend(group) is None:
        return False
    try:
        from torch.distributed import _symmetric_memory as symmetric
    except ImportError:
        return False
    return hasattr(symmetric, "empty") and hasattr(symmetric, "rendezvous")


def _has_handles() -> bool:
    try:
        from cupy.cuda import runtime  # type: ignore[import-not-found, unused-ignore]
    except (ImportError, OSError):
        return False
    return not getattr(runtime, "is_hip", False)

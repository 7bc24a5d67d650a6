"""Which ranks write to each other's memory: what they tell, who is refused, and the calls of a whole communicator."""

import contextlib
import ctypes
import re
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.execute.fake_device import FakeDevice
from tests.execute.transports.recording_nccl import World
from tests.torch_jobs import said, torchrun
from topocomm import DeadlineError, run_local
from topocomm.execute.transports.device import peer_mapping
from topocomm.execute.transports.device.peer_mapping import (
    CUPY,
    THREADS,
    TORCH,
    PeerFacts,
    peer_refusal,
    programs_of,
    way_of,
)

HERE = Path(__file__).parents[2]


@pytest.mark.long
def test_all_collectives_of_a_communicator():
    pytest.importorskip("torch.distributed")
    job = torchrun(3, [HERE / "torch_programs" / "peer.py"], timeout_s=280)
    assert job.returncode == 0, job.stderr[-3000:]
    assert said(job.stdout) == dict.fromkeys(range(3), "ok")


def fact(rank, **told):
    plain = PeerFacts("host", 100 + rank, f"GPU-{rank}", rank, f"0000:{rank:02x}:00.0", 100, [CUPY], [])
    return plain._replace(**told)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({}, None),
        ({"host": "other"}, "ranks 0 and 1 are not on one host"),
        ({"why": "triton is not installed"}, "rank 1: triton is not installed"),
        ({"cut_off": ["GPU-2"]}, "the GPU of rank 1 .0000:01:00.0. cannot map the memory of rank 2's .0000:02:00.0."),
        ({"cut_off": ["GPU-7"]}, None),
        ({"process": 100}, "some ranks are threads of one process, and others are not"),
        ({"gpu": "GPU-0"}, "processes share the GPU 0000:00:00.0"),
        ({"ways": [TORCH]}, "no way to map memory between processes is there on all ranks"),
        ({"ways": [TORCH, CUPY]}, None),
    ],
)
def test_who_is_refused(told, reason):
    found = peer_refusal([fact(0), fact(1, **told), fact(2)], 64)
    assert (found is None) == (reason is None)
    assert reason is None or re.match(reason, found)


def test_how_many_ranks_and_programs():
    assert "3 ranks are more than 2" in peer_refusal([fact(rank) for rank in range(3)], 2)
    assert programs_of([fact(0), fact(1, multiprocessors=78), fact(2)]) == 39  # the others are for another kernel
    threads = [fact(rank, process=5, gpu="one", ways=[]) for rank in range(8)]
    assert peer_refusal(threads, 64) is None  # ranks that are threads may share a GPU
    assert way_of(threads) == THREADS
    assert programs_of(threads) == 100 // 16
    assert way_of([fact(0, ways=[TORCH, CUPY]), fact(1, ways=[CUPY, TORCH])]) == TORCH


class Runtime:
    """A double of cupy.cuda.runtime: handles stand for allocations of this process."""

    def __init__(self, fails=None):
        self.held, self.opened, self.fails, self.log = {}, [], fails or (lambda call: False), []

    def _may(self, call):
        self.log.append(call)
        if self.fails(call):
            raise RuntimeError(f"{call} fails")

    def malloc(self, size):
        self._may("malloc")
        memory = np.full(size, 7, np.uint8)
        self.held[memory.ctypes.data] = memory
        return memory.ctypes.data

    def memset(self, at, value, size):
        self.held[at][:size] = value

    def deviceSynchronize(self):
        pass

    def ipcGetMemHandle(self, at):
        return b"%064x" % at

    def ipcOpenMemHandle(self, handle):
        self._may("open")
        assert isinstance(handle, bytes)
        self.opened.append(int(handle, 16))
        return int(handle, 16)

    def ipcCloseMemHandle(self, at):
        self.opened.remove(at)

    def free(self, at):
        assert not self.opened, "freed while mapped"
        del self.held[at]


def map_by_cupy(monkeypatch, runtimes):
    """What `map_memory` gives on ranks that are threads, each with a runtime of its own."""
    here = threading.local()

    class Cuda:
        Device = staticmethod(lambda index: contextlib.nullcontext())
        runtime = property(lambda self: here.runtime)

    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=Cuda()))
    facts = [fact(rank) for rank in range(len(runtimes))]

    def body(comm):
        here.runtime = runtimes[comm.rank]
        return peer_mapping.map_memory(comm.session.waiting, FakeDevice(World(3), comm.rank), None, facts, 4096)

    return run_local(body, ranks=len(runtimes))


def test_handles_of_cupy_travel(monkeypatch):
    runtimes = [Runtime() for _ in range(3)]
    made = map_by_cupy(monkeypatch, runtimes)
    own = [next(iter(runtime.held)) for runtime in runtimes]
    for rank, (_, addresses) in enumerate(made):
        assert addresses == own
        assert not runtimes[rank].held[own[rank]].any()
        assert sorted(runtimes[rank].opened) == sorted(own[:rank] + own[rank + 1 :])  # nobody opens its own
    for mapping, _ in made:
        mapping.leave()
    for mapping, _ in made:
        mapping.free()
    assert not any(runtime.held or runtime.opened for runtime in runtimes)


@pytest.mark.parametrize("call", ["malloc", "open"])
def test_where_one_rank_cannot_map_none_does(monkeypatch, call):
    runtimes = [Runtime(), Runtime(lambda made: made == call), Runtime()]
    for told in map_by_cupy(monkeypatch, runtimes):
        assert told == f"{CUPY}: rank 1: RuntimeError: {call} fails"
    assert not any(runtime.opened for runtime in runtimes)


def test_an_error_of_any_kind_is_told(monkeypatch):
    runtimes = [Runtime() for _ in range(3)]
    runtimes[1].ipcOpenMemHandle = lambda: None  # takes no handle
    for told in map_by_cupy(monkeypatch, runtimes):
        assert told.startswith(f"{CUPY}: rank 1: TypeError: ")


@pytest.mark.alone
def test_a_library_that_waits_for_a_rank_is_not_awaited_for_ever(monkeypatch):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "0.5")
    over = threading.Event()
    runtimes = [Runtime() for _ in range(3)]
    runtimes[1].ipcOpenMemHandle = lambda handle: over.wait(20)
    began_s = time.monotonic()
    with pytest.raises(DeadlineError, match=r"rank \d: the set-up of memory inside the host.*: still waiting for rank"):
        map_by_cupy(monkeypatch, runtimes)
    assert time.monotonic() - began_s < 10
    over.set()


def test_threads_know_each_others_addresses(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: None)
    world = World(2)
    facts = [fact(rank, process=5, number=rank) for rank in range(2)]
    monkeypatch.setattr(peer_mapping, "_reach", lambda device, index: None)

    def body(comm):
        device = FakeDevice(world, comm.rank)
        mapping, addresses = peer_mapping.map_memory(comm.session.waiting, device, None, facts, 4096)
        assert ctypes.string_at(addresses[comm.rank], 4096) == bytes(4096)
        return mapping, addresses

    (_, one), (_, other) = run_local(body, ranks=2)
    assert one == other and len(set(one)) == 2


def test_symmetric_memory_of_torch(monkeypatch):
    symmetric = pytest.importorskip("torch.distributed._symmetric_memory")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: None)
    memory = torch.ones(4096, dtype=torch.uint8)
    asked = []
    monkeypatch.setattr(symmetric, "empty", lambda size, dtype, device: memory)

    def rendezvous(tensor, group):
        asked.append((tensor, group))
        return types.SimpleNamespace(buffer_ptrs=[memory.data_ptr() + shift, 8])

    monkeypatch.setattr(symmetric, "rendezvous", rendezvous)
    mapping = peer_mapping.TorchMapping(FakeDevice(World(2), 0), 0, 4096, "group")
    shift = 0
    assert mapping.open([mapping.offer()] * 2, [fact(0), fact(1)]) == [memory.data_ptr(), 8]
    assert asked[0][0] is memory and asked[0][1] == "group" and not memory.any()
    shift = 64
    with pytest.raises(RuntimeError, match="not those of these ranks"):
        mapping.open(["", ""], [fact(0), fact(1)])


def test_what_a_rank_tells_without_a_gpu():
    told = peer_mapping.peer_facts(FakeDevice(World(2), 1), None)
    assert told.why.startswith("torch does not tell of its GPU")
    assert told.gpu == "GPU-1" and told.ways == []
